#include "coordinator/config/config_values.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

using testing::HasSubstr;

TEST(ConfigValues, ReadDurationsWithAndWithoutUnits) {
  EXPECT_EQ(*ParseDurationText("30s"), absl::Seconds(30));
  EXPECT_EQ(*ParseDurationText("1h30m"), absl::Minutes(90));
  EXPECT_EQ(*ParseDurationText("500ms"), absl::Milliseconds(500));
  EXPECT_EQ(*ParseDurationText("2.5"), absl::Milliseconds(2500));
  for (const char* wrong :
       {"", "0", "0s", "-5s", "30 seconds", "30x", "nan", "inf", "1e999", "s"}) {
    EXPECT_THAT(std::string(ParseDurationText(wrong).status().message()),
                HasSubstr("is not a duration above zero"))
        << wrong;
  }
}

TEST(ConfigValues, ReadBytesWithAndWithoutUnits) {
  EXPECT_EQ(*ParseBytesText("4096"), 4096u);
  EXPECT_EQ(*ParseBytesText("64MiB"), uint64_t{64} << 20);
  EXPECT_EQ(*ParseBytesText("64 MiB"), uint64_t{64} << 20);
  EXPECT_EQ(*ParseBytesText("1.5GB"), 1'500'000'000u);
  EXPECT_EQ(*ParseBytesText("8k"), 8000u);
  EXPECT_EQ(*ParseBytesText("8Ki"), 8192u);
  for (const char* wrong : {"", "0", "-1", "MiB", "1XB", "1.2.3", "1e9", "99999999TB", "0.1"}) {
    EXPECT_THAT(std::string(ParseBytesText(wrong).status().message()),
                HasSubstr("is not a number of bytes above zero"))
        << wrong;
  }
}

}  // namespace
}  // namespace sparsebalance
