// A page in headless Chromium, driven over its DevTools protocol: JSON messages that end with NUL,
// on two pipes of the browser's own (--remote-debugging-pipe), so no port is opened.
//
//   ChromiumPage page("/path/for/its/profile");
//   page.Open("http://127.0.0.1:7071/");
//   page.WaitUntil("document.querySelector('table') !== null");
//   EXPECT_THAT(page.problems(), IsEmpty());
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace sparsebalance::testing_support {

class ChromiumPage {
 public:
  // Whether the machine has the browser.
  static bool Installed();

  // Starts the browser, which keeps its files in `folder`, and attaches to a page of this size.
  ChromiumPage(const std::string& folder, int width, int height);
  // Ends the browser.
  ~ChromiumPage();
  ChromiumPage(const ChromiumPage&) = delete;
  ChromiumPage& operator=(const ChromiumPage&) = delete;

  void Open(const std::string& url);
  void Resize(int width, int height);
  // The value of an expression of JavaScript, as JSON; promises are waited for.
  nlohmann::json Evaluate(const std::string& expression);
  // Asks until the expression is true. False, and a failure of the test, where it is not in time.
  bool WaitUntil(const std::string& expression, absl::Duration timeout = absl::Seconds(60));
  // A key as if it were typed: "Tab", "Enter".
  void Press(const std::string& key);
  // "light" or "dark".
  void PreferColorScheme(const std::string& scheme);
  // The whole page, however high, as a PNG file.
  void SaveScreenshot(const std::string& path);

  // Exceptions, errors and warnings of the console, and failures to load, so far.
  const std::vector<std::string>& problems() const { return problems_; }
  // The same, for a test that expects some; they are forgotten.
  std::vector<std::string> TakeProblems() { return std::exchange(problems_, {}); }
  // Addresses of all requests so far.
  const std::vector<std::string>& requests() const { return requests_; }

 private:
  // Result of a command; an empty object, and a failure of the test, where it fails.
  nlohmann::json Call(const std::string& method, const nlohmann::json& parameters,
                      bool of_page = true);
  // The next message; null where none comes in time.
  nlohmann::json Read(absl::Time deadline);
  void Note(const nlohmann::json& event);

  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  int last_id_ = 0;
  std::string session_;
  std::string unread_;
  int width_;
  int height_;
  std::vector<std::string> problems_;
  std::vector<std::string> requests_;
};

}  // namespace sparsebalance::testing_support
