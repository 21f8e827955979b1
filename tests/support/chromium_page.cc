#include "tests/support/chromium_page.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace sparsebalance::testing_support {
namespace {

using nlohmann::json;

constexpr char kBrowser[] = "/usr/bin/chromium";
// The first start on a busy machine, under sanitizers, takes longest.
constexpr absl::Duration kAnswerTime = absl::Seconds(90);

}  // namespace

bool ChromiumPage::Installed() { return access(kBrowser, X_OK) == 0; }

ChromiumPage::ChromiumPage(const std::string& folder, int width, int height)
    : width_(width), height_(height) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  if (pipe2(in.data(), O_CLOEXEC) != 0 || pipe2(out.data(), O_CLOEXEC) != 0) {
    ADD_FAILURE() << "no pipe";
    return;
  }
  // A browser that ends would otherwise end the test at the next command.
  signal(SIGPIPE, SIG_IGN);
  std::vector<std::string> argv = {kBrowser,
                                   "--headless=new",
                                   "--no-sandbox",
                                   "--disable-gpu",
                                   "--disable-dev-shm-usage",
                                   "--disable-background-networking",
                                   "--disable-component-update",
                                   "--hide-scrollbars",
                                   "--no-first-run",
                                   absl::StrCat("--window-size=", width, ",", height),
                                   absl::StrCat("--user-data-dir=", folder, "/profile"),
                                   "--remote-debugging-pipe",
                                   "about:blank"};
  std::vector<char*> arguments;
  for (std::string& argument : argv) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const std::string log = folder + "/chromium.log";
  pid_ = fork();
  if (pid_ == 0) {
    setpgid(0, 0);  // its helpers end with it
    const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    // The protocol's: commands come in on 3, answers go out on 4. Both ends may lie there already.
    const int commands = fcntl(in[0], F_DUPFD, 10);
    const int answers = fcntl(out[1], F_DUPFD, 10);
    dup2(commands, 3);
    dup2(answers, 4);
    close(commands);
    close(answers);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  to_ = in[1];
  from_ = out[0];
  const json created = Call("Target.createTarget", {{"url", "about:blank"}}, false);
  if (!created.contains("targetId")) return;
  const json attached =
      Call("Target.attachToTarget", {{"targetId", created["targetId"]}, {"flatten", true}}, false);
  session_ = attached.value("sessionId", "");
  for (const char* domain : {"Runtime.enable", "Log.enable", "Network.enable", "Page.enable"}) {
    Call(domain, json::object());
  }
  Resize(width, height);
}

void ChromiumPage::Resize(int width, int height) {
  width_ = width;
  height_ = height;
  Call("Emulation.setDeviceMetricsOverride",
       {{"width", width}, {"height", height}, {"deviceScaleFactor", 1}, {"mobile", false}});
}

ChromiumPage::~ChromiumPage() {
  if (to_ >= 0) close(to_);
  if (from_ >= 0) close(from_);
  if (pid_ <= 0) return;
  kill(-pid_, SIGKILL);
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

json ChromiumPage::Read(absl::Time deadline) {
  while (true) {
    if (const size_t end = unread_.find('\0'); end != std::string::npos) {
      json message = json::parse(unread_.substr(0, end), nullptr, /*allow_exceptions=*/false);
      unread_.erase(0, end + 1);
      return message;
    }
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return nullptr;
    pollfd waited = {from_, POLLIN, 0};
    const int ready = poll(&waited, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return nullptr;
    std::array<char, 65536> chunk;
    const ssize_t count = read(from_, chunk.data(), chunk.size());
    if (count <= 0) return nullptr;
    unread_.append(chunk.data(), static_cast<size_t>(count));
  }
}

json ChromiumPage::Call(const std::string& method, const json& parameters, bool of_page) {
  json command = {{"id", ++last_id_}, {"method", method}, {"params", parameters}};
  if (of_page) command["sessionId"] = session_;
  const std::string text = command.dump() + '\0';
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t count = write(to_, text.data() + sent, text.size() - sent);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      ADD_FAILURE() << "the browser is gone before " << method;
      return json::object();
    }
    sent += static_cast<size_t>(count);
  }
  const absl::Time deadline = absl::Now() + kAnswerTime;
  while (true) {
    const json message = Read(deadline);
    if (!message.is_object()) {
      ADD_FAILURE() << "the browser does not answer " << method;
      return json::object();
    }
    if (message.value("id", 0) != last_id_) {
      Note(message);
    } else if (message.contains("error")) {
      ADD_FAILURE() << method << ": " << message["error"].dump();
      return json::object();
    } else {
      return message.value("result", json::object());
    }
  }
}

void ChromiumPage::Note(const json& event) {
  const std::string method = event.value("method", "");
  const json parameters = event.value("params", json::object());
  if (method == "Runtime.exceptionThrown") {
    problems_.push_back("exception: " + parameters["exceptionDetails"].dump());
  } else if (method == "Runtime.consoleAPICalled") {
    const std::string type = parameters.value("type", "");
    if (type == "error" || type == "warning" || type == "assert") {
      problems_.push_back("console: " + parameters["args"].dump());
    }
  } else if (method == "Log.entryAdded") {
    const json& entry = parameters["entry"];
    const std::string level = entry.value("level", "");
    if (level == "error" || level == "warning") problems_.push_back("log: " + entry.dump());
  } else if (method == "Network.requestWillBeSent") {
    requests_.push_back(parameters["request"].value("url", ""));
  } else if (method == "Page.javascriptDialogOpening") {
    problems_.push_back("dialog: " + parameters.value("message", ""));
  }
}

void ChromiumPage::Open(const std::string& url) { Call("Page.navigate", {{"url", url}}); }

json ChromiumPage::Evaluate(const std::string& expression) {
  const json result =
      Call("Runtime.evaluate",
           {{"expression", expression}, {"returnByValue", true}, {"awaitPromise", true}});
  if (result.contains("exceptionDetails")) {
    ADD_FAILURE() << expression << ": " << result["exceptionDetails"].dump();
    return nullptr;
  }
  return result.contains("result") ? result["result"].value("value", json()) : json();
}

bool ChromiumPage::WaitUntil(const std::string& expression, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (absl::Now() < deadline && !testing::Test::HasFailure()) {
    // The page itself waits a little, so that the browser is not kept busy by questions. What
    // cannot be evaluated yet is not true yet.
    const json value = Evaluate(absl::StrCat(
        "new Promise(done => { const look = n => { let ok = false; try { ok = !!(", expression,
        "); } catch {} if (ok || n === 0) done(ok); else setTimeout(look, 25, n - 1); }; look(20); "
        "})"));
    if (value == true) return true;
  }
  ADD_FAILURE() << "not in time: " << expression << "\n"
                << Evaluate("document.body.innerText").dump().substr(0, 2000);
  return false;
}

void ChromiumPage::Press(const std::string& key) {
  json event = {{"key", key}, {"code", key}, {"type", "rawKeyDown"}};
  event["windowsVirtualKeyCode"] = key == "Tab" ? 9 : key == "Enter" ? 13 : 0;
  if (key == "Enter") {
    event["type"] = "keyDown";
    event["text"] = "\r";
  }
  Call("Input.dispatchKeyEvent", event);
  event["type"] = "keyUp";
  event.erase("text");
  Call("Input.dispatchKeyEvent", event);
}

void ChromiumPage::PreferColorScheme(const std::string& scheme) {
  Call("Emulation.setEmulatedMedia",
       {{"features", {{{"name", "prefers-color-scheme"}, {"value", scheme}}}}});
}

void ChromiumPage::SaveScreenshot(const std::string& path) {
  const json size = Call("Page.getLayoutMetrics", json::object())["cssContentSize"];
  const json shot = Call("Page.captureScreenshot",
                         {{"format", "png"},
                          {"captureBeyondViewport", true},
                          {"clip",
                           {{"x", 0},
                            {"y", 0},
                            {"width", width_},
                            {"height", size.value("height", static_cast<double>(height_))},
                            {"scale", 1}}}});
  std::string bytes;
  ASSERT_TRUE(absl::Base64Unescape(shot.value("data", ""), &bytes));
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace sparsebalance::testing_support
