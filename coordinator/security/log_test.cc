// What happens again and again in the log.

#include "coordinator/security/handshake_log.h"
#include "coordinator/security/log_capture.h"
#include "coordinator/security/repeat_limiter.h"
#include "gtest/gtest.h"

namespace sparsebalance::security {
namespace {

TEST(RepeatLimiter, SaysAThingOnceAnIntervalAndCountsTheRest) {
  RepeatLimiter limiter(absl::Minutes(1), 10);
  const absl::Time start = absl::FromUnixSeconds(1'700'000'000);
  EXPECT_EQ(limiter.Admit("a", start), 0u);
  EXPECT_EQ(limiter.Admit("a", start + absl::Seconds(1)), std::nullopt);
  EXPECT_EQ(limiter.Admit("a", start + absl::Seconds(2)), std::nullopt);
  EXPECT_EQ(limiter.Admit("b", start + absl::Seconds(2)), 0u);
  EXPECT_EQ(limiter.Admit("a", start + absl::Seconds(60)), 2u);
  EXPECT_EQ(limiter.Admit("a", start + absl::Seconds(120)), 0u);
}

TEST(RepeatLimiter, BeyondItsCapacityAllShareOneLine) {
  RepeatLimiter limiter(absl::Minutes(1), 2);
  const absl::Time start = absl::FromUnixSeconds(1'700'000'000);
  EXPECT_EQ(limiter.Admit("a", start), 0u);
  EXPECT_EQ(limiter.Admit("b", start), 0u);
  EXPECT_EQ(limiter.Admit("c", start), 0u);
  EXPECT_EQ(limiter.Admit("d", start), std::nullopt);
  EXPECT_EQ(limiter.Admit("e", start), std::nullopt);
  // What is old makes room.
  EXPECT_EQ(limiter.Admit("f", start + absl::Seconds(61)), 0u);
  EXPECT_EQ(limiter.Admit("f", start + absl::Seconds(62)), std::nullopt);
}

TEST(HandshakeLog, SaysEachReasonOnceAMinute) {
  LogCapture log;
  absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  HandshakeLog handshakes([&now] { return now; });
  const char* const none =
      "Handshake failed with fatal error SSL_ERROR_SSL: error:0A0000C7:SSL routines::peer did not "
      "return a certificate.";
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(handshakes.Take(none));
  EXPECT_EQ(log.Count("a client showed no certificate (peer did not return a certificate)"), 1u);
  EXPECT_TRUE(
      handshakes.Take("Handshake failed with fatal error SSL_ERROR_SSL: error:0A000086:SSL "
                      "routines::certificate verify failed."));
  EXPECT_EQ(log.Count("certificate verify failed"), 1u);
  EXPECT_TRUE(handshakes.Take("Handshake failed with fatal error SSL_ERROR_SYSCALL: strange."));
  EXPECT_EQ(log.Count("refused: strange"), 1u);
  EXPECT_EQ(handshakes.failures(), 52u);
  now += absl::Seconds(61);
  EXPECT_TRUE(handshakes.Take(none));
  EXPECT_EQ(log.Count("49 more like it since the last line"), 1u);
}

TEST(HandshakeLog, LeavesOtherLinesAlone) {
  HandshakeLog handshakes;
  EXPECT_FALSE(handshakes.Take("Callback server."));
  EXPECT_EQ(handshakes.failures(), 0u);
}

}  // namespace
}  // namespace sparsebalance::security
