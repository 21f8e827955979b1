// HTTP and HTTPS as scrapers, probes and people use it, and as slow clients abuse it.

#include "coordinator/service/status_page.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/security/log_capture.h"
#include "coordinator/security/test_pki.h"
#include "coordinator/service/page/embedded_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

using security::Authorizer;
using security::CertificateWatcher;
using security::Policy;
using security::TestCa;
using security::TestIdentity;
using testing::HasSubstr;
using testing::Not;

StatusPage::Content Pages() {
  StatusPage::Content content;
  content.metrics = [] { return std::string("metric 1\n"); };
  content.overview = [] { return std::string("no jobs\n"); };
  content.healthy = [] { return true; };
  content.jobs = [](const PageApi::Parameters&) { return PageAnswer{200, R"({"jobs":[]})"}; };
  content.job = [](const PageApi::Parameters& asked) {
    return PageAnswer{200, asked.find("namespace")->second + " " + asked.find("name")->second};
  };
  return content;
}

int Connect(int port) {
  const int raw = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(raw, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return raw;
}

// Says `text` over and over, a byte at a time, until the server hangs up. False: it did not within
// a minute.
bool DripUntilClosed(int raw, const std::string& text) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  for (size_t i = 0; absl::Now() < deadline; ++i) {
    if (!text.empty() && send(raw, text.data() + i % text.size(), 1, MSG_NOSIGNAL) != 1) {
      return true;
    }
    pollfd waited = {raw, POLLIN, 0};
    if (poll(&waited, 1, 20) <= 0) continue;
    char answer[512];
    if (recv(raw, answer, sizeof(answer), 0) <= 0) return true;
  }
  return false;
}

class StatusPageTest : public testing::Test {
 protected:
  void Start(StatusPage::Security protection, StatusPage::Content content = Pages()) {
    auto page = StatusPage::Start("127.0.0.1", 0, std::move(content), protection);
    ASSERT_TRUE(page.ok()) << page.status();
    page_ = *std::move(page);
  }

  void StartHttps(Authorizer* authorizer = nullptr) {
    folder_.Write(ca_.IssueServer("first"), ca_.certificate());
    CertificateWatcher::Options options;
    options.interval = absl::Hours(1);
    auto watcher = CertificateWatcher::Start(folder_.files(), options);
    ASSERT_TRUE(watcher.ok()) << watcher.status();
    watcher_ = *std::move(watcher);
    protection_.certificates = watcher_.get();
    protection_.authorizer = authorizer;
    Start(protection_);
  }

  std::unique_ptr<httplib::Client> Client(const TestIdentity& identity) {
    folder_.Write("client.crt", identity.certificate);
    folder_.Write("client.key", identity.key);
    folder_.Write("server-ca.crt", ca_.certificate());
    auto client = std::make_unique<httplib::Client>(
        "https://localhost:" + std::to_string(page_->port()),
        identity.certificate.empty() ? std::string() : folder_ / "client.crt",
        identity.certificate.empty() ? std::string() : folder_ / "client.key");
    client->set_ca_cert_path((folder_ / "server-ca.crt").c_str());
    client->set_address_family(AF_INET);
    return client;
  }

  // "status body", or why there is no answer.
  std::string Get(httplib::Client& client, const std::string& path) {
    const httplib::Result result = client.Get(path.c_str());
    if (!result) return "none: " + httplib::to_string(result.error());
    return std::to_string(result->status) + " " + result->body;
  }
  std::string Get(const std::string& path) {
    httplib::Client client("127.0.0.1", page_->port());
    return Get(client, path);
  }

  security::LogCapture log_;
  const TestCa ca_{"test CA"};
  const security::TestTlsFolder folder_;
  StatusPage::Security protection_;
  std::unique_ptr<CertificateWatcher> watcher_;
  std::unique_ptr<StatusPage> page_;
};

TEST_F(StatusPageTest, ServesItsPages) {
  Start({});
  EXPECT_EQ(Get("/metrics"), "200 metric 1\n");
  EXPECT_EQ(Get("/healthz"), "200 ok\n");
  EXPECT_EQ(Get("/overview.txt"), "200 no jobs\n");
  EXPECT_EQ(Get("/api/v1/jobs"), "200 {\"jobs\":[]}");
  EXPECT_EQ(Get("/api/v1/job?name=a%2Fb%20c&namespace=n"), "200 n a/b c");
  EXPECT_THAT(Get("/api/v1/plans"), HasSubstr("404 {\"error\":"));
  EXPECT_THAT(Get("/else"), HasSubstr("404"));
  httplib::Client client("127.0.0.1", page_->port());
  const httplib::Result posted = client.Post("/api/v1/jobs", "{}", "application/json");
  ASSERT_TRUE(posted);
  EXPECT_EQ(posted->status, 404);  // it only reads
}

TEST_F(StatusPageTest, TheRootIsHtmlForBrowsersAndTextForTools) {
  Start({});
  EXPECT_EQ(Get("/"), "200 no jobs\n");
  httplib::Client client("127.0.0.1", page_->port());
  const httplib::Result page =
      client.Get("/", {{"Accept", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}});
  ASSERT_TRUE(page);
  EXPECT_EQ(page->get_header_value("Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(page->get_header_value("Vary"), "Accept");
  EXPECT_THAT(page->body, HasSubstr("<!doctype html>"));
}

TEST_F(StatusPageTest, EveryAnswerForbidsWhatAPageOfOursDoesNotNeed) {
  Start({});
  for (const char* path :
       {"/", "/page.js", "/api/v1/jobs", "/api/v1/none", "/metrics", "/overview.txt", "/else"}) {
    httplib::Client client("127.0.0.1", page_->port());
    const httplib::Result answer = client.Get(path, {{"Accept", "text/html"}});
    ASSERT_TRUE(answer) << path;
    EXPECT_EQ(answer->get_header_value("Content-Security-Policy"),
              "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
              "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
        << path;
    EXPECT_EQ(answer->get_header_value("X-Content-Type-Options"), "nosniff") << path;
    EXPECT_EQ(answer->get_header_value("Referrer-Policy"), "no-referrer") << path;
    EXPECT_FALSE(answer->has_header("Access-Control-Allow-Origin")) << path;
  }
}

TEST_F(StatusPageTest, FilesAreThoseOfTheSourcesAndAreNotSentTwice) {
  Start({});
  const char* sources = std::getenv("SPARSEBALANCE_SOURCE_DIR");  // NOLINT(concurrency-mt-unsafe)
  ASSERT_NE(sources, nullptr);
  ASSERT_GE(EmbeddedFiles().size(), 5u);
  for (const EmbeddedFile& file : EmbeddedFiles()) {
    const std::string name(file.name);
    std::ifstream in(std::string(sources) + "/coordinator/service/page/" + name, std::ios::binary);
    const std::string source((std::istreambuf_iterator<char>(in)), {});
    EXPECT_TRUE(file.body == source) << name;
    // Nothing of the page comes from elsewhere.
    EXPECT_THAT(source, Not(testing::ContainsRegex("(src|href)=.?(https?:)?//"))) << name;
    EXPECT_THAT(source, Not(testing::ContainsRegex("innerHTML|outerHTML|insertAdjacentHTML|"
                                                   "document\\.write|eval\\(")))
        << name;
    const std::string path = name == "index.html" ? "/" : "/" + name;
    httplib::Client client("127.0.0.1", page_->port());
    const httplib::Result sent = client.Get(path.c_str(), {{"Accept", "text/html"}});
    ASSERT_TRUE(sent) << name;
    EXPECT_TRUE(sent->body == source) << name;
    EXPECT_EQ(sent->get_header_value("Cache-Control"), "no-cache") << name;
    const std::string tag = sent->get_header_value("ETag");
    EXPECT_THAT(tag, testing::MatchesRegex("\"[0-9a-f]+\"")) << name;
    httplib::Client again("127.0.0.1", page_->port());
    const httplib::Result kept =
        again.Get(path.c_str(), {{"Accept", "text/html"}, {"If-None-Match", tag}});
    ASSERT_TRUE(kept) << name;
    EXPECT_EQ(kept->status, 304) << name;
    EXPECT_EQ(kept->body, "") << name;
  }
}

TEST_F(StatusPageTest, AnExceptionsTextStaysInside) {
  StatusPage::Content content = Pages();
  content.overview = []() -> std::string { throw std::runtime_error("a detail"); };
  Start({}, std::move(content));
  httplib::Client client("127.0.0.1", page_->port());
  const httplib::Result result = client.Get("/");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 500);
  EXPECT_THAT(result->body, Not(HasSubstr("detail")));
  EXPECT_FALSE(result->has_header("EXCEPTION_WHAT"));
}

TEST_F(StatusPageTest, OverHttpsNeedsACertificateOfTheCa) {
  StartHttps();
  EXPECT_EQ(Get(*Client(ca_.Issue({.dns = {"anyone"}})), "/metrics"), "200 metric 1\n");
  EXPECT_THAT(Get(*Client({}), "/metrics"), HasSubstr("none"));
  EXPECT_THAT(Get(*Client({}), "/healthz"), HasSubstr("none"));
  const TestCa other("other CA");
  EXPECT_THAT(Get(*Client(other.Issue({.dns = {"anyone"}})), "/metrics"), HasSubstr("none"));
  EXPECT_THAT(Get(*Client(ca_.Issue({.dns = {"anyone"},
                                     .not_before = absl::Now() - absl::Hours(2),
                                     .not_after = absl::Now() - absl::Hours(1)})),
                  "/metrics"),
              HasSubstr("none"));
  EXPECT_THAT(Get("/metrics"), HasSubstr("none"));
  EXPECT_TRUE(log_.WaitFor("refused: certificate has expired"));  // the client may know before
  page_.reset();
  EXPECT_EQ(log_.Count("peer did not return a certificate"), 1u) << log_.Text();
  EXPECT_EQ(log_.Count("refused: certificate has expired"), 1u) << log_.Text();
}

TEST_F(StatusPageTest, WithoutACaOfClientsEveryoneMayRead) {
  folder_.Write(ca_.IssueServer("first"), ca_.certificate());
  security::TlsFiles files = folder_.files();
  files.ca.clear();
  auto watcher = CertificateWatcher::Start(files, {});
  ASSERT_TRUE(watcher.ok()) << watcher.status();
  watcher_ = *std::move(watcher);
  protection_.certificates = watcher_.get();
  Start(protection_);
  EXPECT_EQ(Get(*Client({}), "/metrics"), "200 metric 1\n");
  // Then nobody can be told apart.
  const auto policy = Policy::Everyone();
  Authorizer authorizer(policy, {});
  protection_.authorizer = &authorizer;
  EXPECT_EQ(StatusPage::Start("127.0.0.1", 0, Pages(), protection_).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(StatusPageTest, WhatShowsEveryNamespaceIsForReadersOfEveryNamespace) {
  auto policy = Policy::Parse(R"({"rules": [
    {"san": "dns:prometheus", "role": "reader", "namespaces": ["*"]},
    {"san": "dns:grafana", "role": "reader", "namespaces": ["ml"]},
    {"san": "dns:node", "role": "node", "namespaces": ["*"]}
  ]})",
                              "auth.json");
  ASSERT_TRUE(policy.ok()) << policy.status();
  Authorizer authorizer(*std::move(policy), {});
  StartHttps(&authorizer);
  EXPECT_EQ(Get(*Client(ca_.Issue({.dns = {"prometheus"}})), "/metrics"), "200 metric 1\n");
  const std::vector<std::string> pages = {
      "/",        "/overview.txt", "/api/v1/jobs",
      "/page.js", "/page.css",     "/api/v1/job?name=x&namespace=y"};
  for (const std::string& path : pages) {
    EXPECT_THAT(Get(*Client(ca_.Issue({.dns = {"prometheus"}})), path), HasSubstr("200 ")) << path;
  }
  for (const char* name : {"grafana", "node", "stranger"}) {
    const auto client = Client(ca_.Issue({.dns = {name}}));
    EXPECT_THAT(Get(*client, "/metrics"), HasSubstr("403 dns:" + std::string(name)));
    for (const std::string& path : pages) {
      EXPECT_THAT(Get(*client, path), HasSubstr("403")) << path;
    }
    EXPECT_THAT(Get(*client, "/api/v1/jobs"), HasSubstr("403 {\"error\":{\"code\":\"PERMISSION_"));
    EXPECT_EQ(Get(*client, "/healthz"), "200 ok\n");
  }
  EXPECT_THAT(Get(*Client(ca_.Issue({})), "/metrics"), HasSubstr("401"));
  page_.reset();
  EXPECT_EQ(log_.Count("dns:grafana may not call status page"), 1u);
  EXPECT_EQ(log_.Count("denied to 127.0.0.1"), 4u);
}

TEST_F(StatusPageTest, ARotationIsTakenUpWithoutARestart) {
  StartHttps();
  const TestIdentity old_reader = ca_.Issue({.dns = {"anyone"}});
  EXPECT_EQ(Get(*Client(old_reader), "/metrics"), "200 metric 1\n");
  const TestCa next("next CA");
  folder_.Write(ca_.IssueServer("second"), next.certificate());
  watcher_->CheckNow();
  EXPECT_THAT(Get(*Client(old_reader), "/metrics"), HasSubstr("none"));
  EXPECT_EQ(Get(*Client(next.Issue({.dns = {"anyone"}})), "/metrics"), "200 metric 1\n");
  // A bad one changes nothing.
  folder_.Write("tls.key", ca_.IssueServer("third").key);
  for (int i = 0; i < 3; ++i) watcher_->CheckNow();
  EXPECT_EQ(Get(*Client(next.Issue({.dns = {"anyone"}})), "/metrics"), "200 metric 1\n");
}

TEST_F(StatusPageTest, MoreSlowClientsThanThreadsKeepNobodyOut) {
  protection_.limits.threads = 2;
  protection_.limits.waiting = 64;
  protection_.limits.fair_time = absl::Milliseconds(50);
  protection_.limits.connection = absl::Seconds(2);
  Start(protection_);
  std::atomic<bool> done{false};
  std::vector<std::thread> lorises;
  for (int i = 0; i < 8; ++i) {
    lorises.emplace_back([&, i] {
      while (!done) {
        const int raw = Connect(page_->port());
        // Some say nothing at all, some never come to an end of a header.
        EXPECT_TRUE(DripUntilClosed(raw, i % 2 == 0 ? "" : "GET / HTTP/1.1\r\nX: x"));
        close(raw);
      }
    });
  }
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Get("/metrics"), "200 metric 1\n");
  done = true;
  for (std::thread& loris : lorises) loris.join();
  EXPECT_GE(log_.Count("while others wait"), 1u);
}

TEST_F(StatusPageTest, OverHttpsToo) {
  protection_.limits.threads = 2;
  protection_.limits.waiting = 64;
  protection_.limits.fair_time = absl::Milliseconds(100);
  protection_.limits.connection = absl::Seconds(2);
  StartHttps();
  std::atomic<bool> done{false};
  std::vector<std::thread> lorises;
  for (int i = 0; i < 8; ++i) {
    lorises.emplace_back([&, i] {
      while (!done) {
        const int raw = Connect(page_->port());
        EXPECT_TRUE(
            DripUntilClosed(raw, i % 2 == 0 ? "" : std::string("\x16\x03\x01\x40\x00\x01", 6)));
        close(raw);
      }
    });
  }
  const TestIdentity reader = ca_.Issue({.dns = {"anyone"}});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Get(*Client(reader), "/metrics"), "200 metric 1\n");
  done = true;
  for (std::thread& loris : lorises) loris.join();
}

TEST_F(StatusPageTest, AConnectionHasOneDeadlineForAllOfIt) {
  protection_.limits.connection = absl::Milliseconds(200);
  Start(protection_);
  const int raw = Connect(page_->port());
  EXPECT_TRUE(DripUntilClosed(raw, "GET / HTTP/1.1\r\nX: x"));
  close(raw);
  page_.reset();
  EXPECT_EQ(log_.Count("cut off: not done within 200ms"), 1u) << log_.Text();
}

TEST_F(StatusPageTest, BeyondItsQueueConnectionsAreClosedAtOnce) {
  protection_.limits.threads = 1;
  protection_.limits.waiting = 1;
  protection_.limits.fair_time = absl::Seconds(30);
  protection_.limits.connection = absl::Seconds(60);
  Start(protection_);
  std::vector<int> held;
  // One is served, one waits, the others find no place.
  for (int i = 0; i < 8; ++i) held.push_back(Connect(page_->port()));
  // Which ones they are, and whether 6 or 7, depends on when the serving thread took its first.
  const auto closed = [&held] {
    return std::count_if(held.begin(), held.end(), [](int raw) {
      char byte = 0;
      const ssize_t got = recv(raw, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      return got == 0 || (got < 0 && errno == ECONNRESET);
    });
  };
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (closed() < 6 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(2));
  EXPECT_GE(closed(), 6);
  // Ends at once, whatever the clients do.
  page_.reset();
  for (const int raw : held) close(raw);
  EXPECT_EQ(log_.Count("connections refused: 1 are served and 1 wait already"), 1u);
}

TEST_F(StatusPageTest, AnOversizedRequestIsRefused) {
  protection_.limits.request_bytes = 4096;
  Start(protection_);
  httplib::Client client("127.0.0.1", page_->port());
  const httplib::Result headers = client.Get("/metrics", {{"X-Filler", std::string(8000, 'x')}});
  EXPECT_TRUE(!headers || headers->status != 200);
  httplib::Client poster("127.0.0.1", page_->port());
  const httplib::Result body = poster.Post("/metrics", std::string(100'000, 'x'), "text/plain");
  EXPECT_TRUE(!body || body->status != 200);
  EXPECT_EQ(Get("/metrics"), "200 metric 1\n");
}

}  // namespace
}  // namespace sparsebalance
