// The contract that programs of the last version were built from still holds.
#include "tests/proto/breaking_changes.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {
namespace {

using ::google::protobuf::FileDescriptorProto;
using ::google::protobuf::FileDescriptorSet;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The contract of this build: the service's file and all that it imports.
FileDescriptorSet CurrentContract() {
  FileDescriptorSet contract;
  std::vector<const google::protobuf::FileDescriptor*> open = {
      v1::JoinJobRequest::descriptor()->file()};
  std::set<std::string> seen;
  while (!open.empty()) {
    const auto* file = open.back();
    open.pop_back();
    if (!seen.insert(file->name()).second) continue;
    file->CopyTo(contract.add_file());
    for (int i = 0; i < file->dependency_count(); ++i) open.push_back(file->dependency(i));
  }
  return contract;
}

TEST(ContractTest, NothingThatTheLastVersionReliesOnHasChanged) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread
  const char* const source = std::getenv("SPARSEBALANCE_SOURCE_DIR");
  ASSERT_NE(source, nullptr);
  const std::filesystem::path folder = std::filesystem::path(source) / "proto/baseline";
  int baselines = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".desc") continue;
    ++baselines;
    FileDescriptorSet before;
    std::ifstream in(entry.path(), std::ios::binary);
    ASSERT_TRUE(before.ParseFromIstream(&in)) << entry.path();
    ASSERT_GT(before.file_size(), 0) << entry.path();
    EXPECT_THAT(BreakingChanges(before, CurrentContract()), IsEmpty())
        << "against " << entry.path() << "; see docs/upgrade.md";
  }
  EXPECT_GT(baselines, 0) << "no .desc in " << folder;
}

// A small contract, changed in one way at a time.
constexpr char kBefore[] = R"pb(
  name: "a.proto"
  package: "a"
  message_type {
    name: "M"
    field { name: "x" number: 1 type: TYPE_UINT32 label: LABEL_OPTIONAL }
    field { name: "y" number: 2 type: TYPE_STRING label: LABEL_REPEATED }
    reserved_range { start: 7 end: 8 }
    reserved_name: "old"
  }
  enum_type {
    name: "E"
    value { name: "E_ZERO" number: 0 }
    value { name: "E_ONE" number: 1 }
  }
  service {
    name: "S"
    method { name: "Do" input_type: ".a.M" output_type: ".a.M" }
  }
)pb";

class BreakingChangesTest : public ::testing::Test {
 protected:
  BreakingChangesTest() {
    FileDescriptorProto file;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(kBefore, &file));
    *before_.add_file() = file;
    *after_.add_file() = file;
  }

  FileDescriptorProto& after() { return *after_.mutable_file(0); }
  std::vector<std::string> Changes() const { return BreakingChanges(before_, after_); }

  FileDescriptorSet before_, after_;
};

TEST_F(BreakingChangesTest, ASetBreaksNothingForItself) { EXPECT_THAT(Changes(), IsEmpty()); }

TEST_F(BreakingChangesTest, AdditionsBreakNothing) {
  auto* field = after().mutable_message_type(0)->add_field();
  field->set_name("z");
  field->set_number(3);
  after().mutable_enum_type(0)->add_value()->set_number(2);
  after().mutable_service(0)->add_method()->set_name("More");
  after().add_message_type()->set_name("N");
  EXPECT_THAT(Changes(), IsEmpty());
}

TEST_F(BreakingChangesTest, AFieldMayGoOnlyWhereNumberAndNameAreReserved) {
  auto* message = after().mutable_message_type(0);
  message->mutable_field()->DeleteSubrange(0, 1);
  EXPECT_THAT(Changes(), ElementsAre(HasSubstr("a.M.x is gone")));
  auto* range = message->add_reserved_range();
  range->set_start(1);
  range->set_end(2);
  EXPECT_THAT(Changes(), ElementsAre(HasSubstr("a.M.x is gone")));
  message->add_reserved_name("x");
  EXPECT_THAT(Changes(), IsEmpty());
}

TEST_F(BreakingChangesTest, AFieldKeepsItsTypeAndItsName) {
  auto* message = after().mutable_message_type(0);
  message->mutable_field(0)->set_type(google::protobuf::FieldDescriptorProto::TYPE_SINT32);
  message->mutable_field(1)->set_name("why");
  EXPECT_THAT(Changes(), ElementsAre(HasSubstr("a.M.x was LABEL_OPTIONAL TYPE_UINT32"),
                                     HasSubstr("a.M.y is called why now")));
}

TEST_F(BreakingChangesTest, AFieldStaysInOrOutOfAOneof) {
  auto* message = after().mutable_message_type(0);
  message->add_oneof_decl()->set_name("choice");
  message->mutable_field(0)->set_oneof_index(0);
  EXPECT_THAT(Changes(), ElementsAre(HasSubstr("of choice")));
}

TEST_F(BreakingChangesTest, ReservedNumbersAndNamesAreNotUsedAgain) {
  auto* message = after().mutable_message_type(0);
  message->clear_reserved_range();
  auto* field = message->add_field();
  field->set_name("fresh");
  field->set_number(7);
  EXPECT_THAT(Changes(), ElementsAre(HasSubstr("a.M.fresh uses a number or a name")));
  field->set_number(8);
  field->set_name("old");
  EXPECT_THAT(Changes(), ElementsAre(HasSubstr("a.M.old uses a number or a name")));
}

TEST_F(BreakingChangesTest, EnumValuesStay) {
  after().mutable_enum_type(0)->mutable_value()->RemoveLast();
  EXPECT_THAT(Changes(), ElementsAre(HasSubstr("a.E.E_ONE is gone")));
}

TEST_F(BreakingChangesTest, RpcsStay) {
  after().mutable_service(0)->mutable_method(0)->set_server_streaming(true);
  EXPECT_THAT(Changes(), ElementsAre(HasSubstr("a.S.Do takes or returns something else")));
  after().mutable_service(0)->clear_method();
  EXPECT_THAT(Changes(), ElementsAre("a.S.Do is gone"));
}

TEST_F(BreakingChangesTest, MessagesEnumsAndServicesStay) {
  after().Clear();
  EXPECT_THAT(Changes(), ElementsAre("a.M is gone", "a.E is gone", "a.S is gone"));
}

}  // namespace
}  // namespace sparsebalance
