// What the program logs while this object lives, for tests that say what must and must not be
// there. Made before every thread of ours that logs, and gone after it.
#pragma once

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace sparsebalance::security {

class LogCapture {
 public:
  LogCapture() : sink_(std::make_shared<Sink>()), before_(spdlog::default_logger()) {
    auto logger = std::make_shared<spdlog::logger>("captured", sink_);
    logger->set_level(spdlog::level::debug);
    kept.push_back(logger);
    spdlog::set_default_logger(std::move(logger));
  }
  ~LogCapture() { spdlog::set_default_logger(before_); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  // "level message", one a line.
  std::string Text() const { return sink_->Text(); }
  // Lines that hold `part`.
  size_t Count(const std::string& part) const {
    size_t lines = 0;
    const std::string text = Text();
    for (size_t from = 0; from < text.size();) {
      const size_t end = text.find('\n', from);
      lines += text.substr(from, end - from).find(part) != std::string::npos ? 1 : 0;
      from = end + 1;
    }
    return lines;
  }

  // Waits until there is such a line; false after half a minute.
  bool WaitFor(const std::string& part) const {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (Count(part) == 0) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

 private:
  class Sink : public spdlog::sinks::base_sink<std::mutex> {
   public:
    std::string Text() {
      const std::lock_guard<std::mutex> lock(text_mutex_);
      return text_;
    }

   protected:
    void sink_it_(const spdlog::details::log_msg& message) override {
      const auto level = spdlog::level::to_string_view(message.level);
      const std::lock_guard<std::mutex> lock(text_mutex_);
      text_.append(level.data(), level.size());
      text_ += ' ';
      text_.append(message.payload.data(), message.payload.size());
      text_ += '\n';
    }
    void flush_() override {}

   private:
    // The base's own is locked inside the library, where ThreadSanitizer does not look.
    std::mutex text_mutex_;
    std::string text_;
  };

  // Threads of libraries may still be about to log when a test is over.
  static inline std::vector<std::shared_ptr<spdlog::logger>> kept;

  const std::shared_ptr<Sink> sink_;
  const std::shared_ptr<spdlog::logger> before_;
};

}  // namespace sparsebalance::security
