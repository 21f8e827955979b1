// Statuses on the wire, and addresses.

#include "coordinator/planner/status_payload.h"
#include "coordinator/service/listen_address.h"
#include "coordinator/service/metrics.h"
#include "coordinator/service/status_conversion.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {
namespace {

TEST(StatusConversionTest, CodesMessagesAndDetailsSurviveTheWay) {
  absl::Status status = absl::AbortedError("generation 3 is over");
  v1::StaleMember stale;
  stale.set_current_generation(4);
  planner::AttachDetail(status, stale);
  v1::RetryLater later;
  later.set_retry_after_ms(20);
  planner::AttachDetail(status, later);
  const absl::Status back = FromGrpcStatus(ToGrpcStatus(status));
  EXPECT_EQ(back, status);
  EXPECT_EQ(planner::GetDetail<v1::StaleMember>(back)->current_generation(), 4u);
  EXPECT_EQ(planner::GetDetail<v1::RetryLater>(back)->retry_after_ms(), 20u);
}

TEST(StatusConversionTest, EveryCodeKeepsItsMeaning) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const grpc::Status sent = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(sent.error_code()), code);
    EXPECT_EQ(FromGrpcStatus(sent), status);
    EXPECT_EQ(GrpcCodeName(sent.error_code()),
              absl::StatusCodeToString(static_cast<absl::StatusCode>(code)));
  }
}

TEST(StatusConversionTest, DetailsThatCannotBeReadAreLeftOut) {
  const absl::Status status =
      FromGrpcStatus(grpc::Status(grpc::StatusCode::INTERNAL, "broken", "\xff\xff\xff"));
  EXPECT_EQ(status, absl::InternalError("broken"));
}

TEST(ListenAddressTest, IsHostAndPort) {
  const auto address = ListenAddress::Parse("127.0.0.1:7070");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(address->host, "127.0.0.1");
  EXPECT_EQ(address->port, 7070);
  EXPECT_TRUE(address->IsLoopback());
  const auto v6 = ListenAddress::Parse("[::1]:0");
  ASSERT_TRUE(v6.ok()) << v6.status();
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->ToString(), "[::1]:0");
  EXPECT_TRUE(v6->IsLoopback());
  EXPECT_FALSE(ListenAddress::Parse("0.0.0.0:1")->IsLoopback());
  EXPECT_FALSE(ListenAddress::Parse("node-7:1")->IsLoopback());
  EXPECT_FALSE(ListenAddress::Parse("[::]:1")->IsLoopback());
  EXPECT_FALSE(ListenAddress::Parse("127.example.org:1")->IsLoopback());
}

TEST(ListenAddressTest, MistakesAreNamed) {
  for (const char* text : {"", "7070", ":7070", "host:", "host:x", "host:70000", "host:-1",
                           "::1:7070", "[[::1]]:1", "[[]]:9"}) {
    EXPECT_EQ(ListenAddress::Parse(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

}  // namespace
}  // namespace sparsebalance
