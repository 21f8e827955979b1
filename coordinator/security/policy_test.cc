// The authorization file: what it grants, and how it says what is wrong with it.

#include "coordinator/security/policy.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::security {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using testing::UnorderedElementsAre;

std::vector<std::string> Grants(const Policy& policy, const PeerIdentity& identity) {
  std::vector<std::string> texts;
  for (const Grant& grant : policy.GrantsOf(identity)) {
    texts.push_back(std::string(RoleName(grant.role)) + " " +
                    (grant.every_namespace ? "everywhere" : grant.name_space));
  }
  return texts;
}

std::string Problem(const std::string& json) {
  const auto policy = Policy::Parse(json, "auth.json");
  EXPECT_FALSE(policy.ok()) << json;
  const std::string message(policy.status().message());
  EXPECT_THAT(message, StartsWith("authorization file auth.json: "));
  return message;
}

std::string ProblemOfRule(const std::string& rule) {
  return Problem(R"({"rules": [{"san": "dns:a.b", "role": "node", "namespaces": ["x"]}, )" + rule +
                 "]}");
}

TEST(Policy, GrantsAddUp) {
  const auto policy = Policy::Parse(R"({
    "rules": [
      // A trainer's nodes.
      {"san": "spiffe://c/ns/{namespace}/sa/trainer", "role": "node"},
      {"san": "spiffe://c/ns/{namespace}/*", "role": "reader", "namespaces": ["{namespace}", "shared"]},
      {"san": "dns:ops.example.org", "role": "operator", "namespaces": ["*"]} /* all of it */
    ]
  })",
                                    "auth.json");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ(policy->rules(), 3u);
  EXPECT_THAT(Grants(*policy, {{"spiffe://c/ns/ml/sa/trainer"}, {}}),
              UnorderedElementsAre("node ml", "reader ml", "reader shared"));
  EXPECT_THAT(Grants(*policy, {{}, {"ops.example.org"}}),
              UnorderedElementsAre("operator everywhere"));
  EXPECT_THAT(Grants(*policy, {{"spiffe://c/ns/ml"}, {"other.example.org"}}), IsEmpty());
  EXPECT_THAT(Grants(*policy, {}), IsEmpty());
}

TEST(Policy, ANamespaceCalledStarInACertificateIsNotEveryNamespace) {
  const auto policy = Policy::Parse(
      R"({"rules": [{"san": "spiffe://c/ns/{namespace}/sa/trainer", "role": "node"}]})",
      "auth.json");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_THAT(Grants(*policy, {{"spiffe://c/ns/*/sa/trainer"}, {}}),
              UnorderedElementsAre("node *"));
}

TEST(Policy, EveryoneMeansEveryoneWithAName) {
  EXPECT_THAT(Grants(Policy::Everyone(), {{}, {"a.b"}}),
              UnorderedElementsAre("operator everywhere"));
  EXPECT_THAT(Grants(Policy::Everyone(), {}), IsEmpty());
}

TEST(Policy, ErrorsNameFileRuleFieldAndValueAndSayWhatToWrite) {
  EXPECT_THAT(ProblemOfRule(R"({"san": "dns:a.b", "role": "admin", "namespaces": ["x"]})"),
              AllOf(HasSubstr("rules[1].role: 'admin' is no role"),
                    HasSubstr("\"node\", \"reader\" or \"operator\"")));
  EXPECT_THAT(ProblemOfRule(R"({"san": "dns:a.b", "namespaces": ["x"]})"),
              HasSubstr("rules[1].role: is missing; use"));
  EXPECT_THAT(ProblemOfRule(R"({"role": "node", "namespaces": ["x"]})"),
              HasSubstr("rules[1].san: is missing; write the name"));
  EXPECT_THAT(ProblemOfRule(R"({"san": 7, "role": "node", "namespaces": ["x"]})"),
              HasSubstr("rules[1].san: 7 is not a string"));
  EXPECT_THAT(ProblemOfRule(R"({"san": "trainer", "role": "node", "namespaces": ["x"]})"),
              HasSubstr("rules[1].san: 'trainer' is neither a URI"));
  EXPECT_THAT(ProblemOfRule(R"({"san": "dns:a.b", "role": "node"})"),
              AllOf(HasSubstr("rules[1].namespaces: is missing"), HasSubstr("[\"*\"] for all")));
  EXPECT_THAT(ProblemOfRule(R"({"san": "dns:a.b", "role": "node", "namespaces": []})"),
              HasSubstr("rules[1].namespaces: [] is not a list of names"));
  EXPECT_THAT(ProblemOfRule(R"({"san": "dns:a.b", "role": "node", "namespaces": ["x", ""]})"),
              HasSubstr("rules[1].namespaces[1]: \"\" is not a name"));
  EXPECT_THAT(ProblemOfRule(R"({"san": "dns:a.b", "role": "node", "namespaces": ["ml-*"]})"),
              HasSubstr("rules[1].namespaces[0]: 'ml-*' is a pattern"));
  EXPECT_THAT(ProblemOfRule(R"({"san": "dns:a.b", "role": "node", "namespaces": ["{namespace}"]})"),
              HasSubstr("the san does not contain it"));
  EXPECT_THAT(ProblemOfRule(R"({"san": "dns:{namespace}.b", "role": "node", "namespaces": ["x"]})"),
              HasSubstr("the san captures {namespace}, which is not in this list"));
  EXPECT_THAT(ProblemOfRule("[]"), HasSubstr("rules[1]: [] is not an object"));
}

TEST(Policy, RefusesFieldsThatItDoesNotKnowOrSeesTwice) {
  EXPECT_THAT(ProblemOfRule(R"({"san": "dns:a.b", "role": "node", "namespace": ["x"]})"),
              HasSubstr("rules[1].namespace: unknown field; a rule has san, role and namespaces"));
  EXPECT_THAT(ProblemOfRule(
                  R"({"san": "dns:a.b", "role": "node", "role": "operator", "namespaces": ["x"]})"),
              HasSubstr("field \"role\" is given twice"));
  EXPECT_THAT(Problem(R"({"rules": [], "roles": []})"), HasSubstr("roles: unknown field"));
  EXPECT_THAT(Problem(R"({"rules": []})"), HasSubstr("rules: must be an array of at least one"));
  EXPECT_THAT(Problem("{}"), HasSubstr("rules: must be an array"));
  EXPECT_THAT(Problem("[]"), HasSubstr("must be an object"));
}

TEST(Policy, SaysWhereAFileIsNotJson) {
  EXPECT_THAT(Problem("{\n  \"rules\": [,]\n}"),
              AllOf(HasSubstr("is not JSON"), HasSubstr("line 2, column")));
  EXPECT_THAT(Problem(""), HasSubstr("is not JSON"));
}

TEST(Policy, AFileThatIsNotThereIsNamed) {
  const auto text = Policy::ReadFile("/nowhere/auth.json");
  EXPECT_EQ(text.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(text.status().message()),
              HasSubstr("authorization file /nowhere/auth.json cannot be read"));
}

}  // namespace
}  // namespace sparsebalance::security
