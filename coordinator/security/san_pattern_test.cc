// What patterns of certificate names match, and what they refuse to mean.

#include "coordinator/security/san_pattern.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::security {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

SanPattern Pattern(const std::string& text) {
  auto pattern = SanPattern::Parse(text);
  EXPECT_TRUE(pattern.ok()) << text << ": " << pattern.status();
  return pattern.ok() ? *std::move(pattern) : SanPattern();
}

PeerIdentity Uri(const std::string& uri) { return {{uri}, {}}; }
PeerIdentity Dns(const std::string& name) { return {{}, {name}}; }

bool Fits(const std::string& pattern, const PeerIdentity& identity) {
  return !Pattern(pattern).Matches(identity).empty();
}

std::string PatternProblem(const std::string& text) {
  const auto pattern = SanPattern::Parse(text);
  EXPECT_FALSE(pattern.ok()) << text;
  return std::string(pattern.status().message());
}

TEST(SanPattern, WithoutStarsComparesEveryByte) {
  EXPECT_TRUE(Fits("spiffe://cluster/ns/ml", Uri("spiffe://cluster/ns/ml")));
  EXPECT_TRUE(Fits("uri:spiffe://cluster/ns/ml", Uri("spiffe://cluster/ns/ml")));
  for (const char* other :
       {"spiffe://cluster/ns/ml/", "spiffe://cluster/ns/m", "spiffe://cluster/ns",
        "spiffe://cluster/ns/ML", "spiffe://cluster/ns/ml/sa", "http://cluster/ns/ml",
        "xspiffe://cluster/ns/ml"}) {
    EXPECT_FALSE(Fits("spiffe://cluster/ns/ml", Uri(other))) << other;
  }
}

TEST(SanPattern, AStarStaysWithinItsPart) {
  EXPECT_TRUE(Fits("spiffe://c/ns/*/sa/t", Uri("spiffe://c/ns/ml/sa/t")));
  EXPECT_FALSE(Fits("spiffe://c/ns/*/sa/t", Uri("spiffe://c/ns/ml/x/sa/t")));
  EXPECT_FALSE(Fits("spiffe://c/ns/*/sa/t", Uri("spiffe://c/ns//sa/t")));
  EXPECT_TRUE(Fits("spiffe://c/ns/ml-*", Uri("spiffe://c/ns/ml-7")));
  EXPECT_FALSE(Fits("spiffe://c/ns/ml-*", Uri("spiffe://c/ns/ml-")));
  EXPECT_FALSE(Fits("spiffe://c/ns/ml-*", Uri("spiffe://c/ns/ml-7/admin")));
  EXPECT_TRUE(Fits("spiffe://c/a*b*c", Uri("spiffe://c/axbbc")));
  EXPECT_FALSE(Fits("spiffe://c/a*b*c", Uri("spiffe://c/abc")));
  EXPECT_FALSE(Fits("spiffe://c/a*b*c", Uri("spiffe://c/axbc")));
}

TEST(SanPattern, ALastPartThatIsAStarAloneStandsForAllThatFollowsInAUri) {
  EXPECT_TRUE(Fits("spiffe://c/ns/ml/*", Uri("spiffe://c/ns/ml/sa")));
  EXPECT_TRUE(Fits("spiffe://c/ns/ml/*", Uri("spiffe://c/ns/ml/sa/trainer")));
  EXPECT_FALSE(Fits("spiffe://c/ns/ml/*", Uri("spiffe://c/ns/ml/")));
  EXPECT_FALSE(Fits("spiffe://c/ns/ml/*", Uri("spiffe://c/ns/ml")));
  // Where names only begin alike, they are not beneath.
  EXPECT_FALSE(Fits("spiffe://c/ns/ml/*", Uri("spiffe://c/ns/mlops/sa")));
}

TEST(SanPattern, DnsNamesAreComparedLabelByLabelWithoutRegardToCase) {
  EXPECT_TRUE(Fits("dns:Node-*.Train.Example.Org", Dns("node-7.train.example.org")));
  EXPECT_TRUE(Fits("dns:*.example.org", Dns("a.example.org")));
  EXPECT_FALSE(Fits("dns:*.example.org", Dns("a.b.example.org")));
  EXPECT_FALSE(Fits("dns:*.example.org", Dns("example.org")));
  EXPECT_FALSE(Fits("dns:example.*", Dns("example.org.evil.net")));
  EXPECT_FALSE(Fits("dns:a.example.org", Uri("a.example.org")));
}

TEST(SanPattern, CapturesTheNamespace) {
  const SanPattern pattern = Pattern("spiffe://c/ns/{namespace}/sa/*");
  EXPECT_TRUE(pattern.captures_namespace());
  EXPECT_THAT(pattern.Matches(Uri("spiffe://c/ns/ml/sa/trainer")), ElementsAre("ml"));
  EXPECT_THAT(pattern.Matches(Uri("spiffe://c/ns//sa/trainer")), IsEmpty());
  EXPECT_THAT(pattern.Matches(Uri("spiffe://c/ns/" + std::string(201, 'x') + "/sa/t")), IsEmpty());
  EXPECT_THAT(pattern.Matches({{"spiffe://c/ns/a/sa/t", "spiffe://c/ns/b/sa/t"}, {}}),
              ElementsAre("a", "b"));
  EXPECT_THAT(Pattern("dns:{namespace}.train.example.org").Matches(Dns("ml.train.example.org")),
              ElementsAre("ml"));
}

TEST(SanPattern, RefusesWhatCouldMeanTwoThings) {
  EXPECT_THAT(PatternProblem("trainer"), HasSubstr("neither a URI"));
  EXPECT_THAT(PatternProblem(""), HasSubstr("neither a URI"));
  EXPECT_THAT(PatternProblem("dns:"), HasSubstr("is empty"));
  EXPECT_THAT(PatternProblem("spiffe:///ns/ml"), HasSubstr("no host"));
  EXPECT_THAT(PatternProblem("spiffe://*/ns/ml"), HasSubstr("scheme or host"));
  EXPECT_THAT(PatternProblem("*://cluster/ns/ml"), HasSubstr("scheme or host"));
  EXPECT_THAT(PatternProblem("spiffe://c/ns/**"), HasSubstr("'**'"));
  EXPECT_THAT(PatternProblem("spiffe://c/ns/x{namespace}"), HasSubstr("whole part"));
  EXPECT_THAT(PatternProblem("spiffe://c/ns/{name}"), HasSubstr("{namespace} only"));
  EXPECT_THAT(PatternProblem("spiffe://c/{namespace}/{namespace}"), HasSubstr("twice"));
  EXPECT_THAT(PatternProblem("spiffe://c/a b"), HasSubstr("space"));
}

}  // namespace
}  // namespace sparsebalance::security
