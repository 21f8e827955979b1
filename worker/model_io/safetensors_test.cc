// Files of tensors: what comes back, and what is refused.
#include "worker/model_io/safetensors.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/data_test_util.h"
#include "worker/model_io/float_formats.h"
#include "worker/model_io/tensor_info.h"

namespace sparsebalance::model_io {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::string FileBytes(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + std::string(data_bytes, '\0');
}

struct BadHeader {
  const char* name;
  const char* header;
  size_t data_bytes;
  const char* message;
  absl::StatusCode code = absl::StatusCode::kDataLoss;
};

void PrintTo(const BadHeader& bad, std::ostream* out) { *out << bad.name; }

class MalformedTest : public ::testing::TestWithParam<BadHeader> {
 protected:
  data_testing::TempFolder folder_;
};

TEST_P(MalformedTest, IsRefusedWithPathAndReason) {
  const std::string path = folder_ / "bad.safetensors";
  data_testing::WriteFile(path, FileBytes(GetParam().header, GetParam().data_bytes));
  const auto file = SafetensorsFile::Open(path);
  EXPECT_EQ(file.status().code(), GetParam().code) << file.status();
  EXPECT_THAT(file.status().message(), HasSubstr(path));
  EXPECT_THAT(file.status().message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Headers, MalformedTest,
    ::testing::Values(
        BadHeader{"empty", "", 0, "does not begin with '{'"},
        BadHeader{"blank_first", R"( {})", 0, "does not begin with '{'"},
        BadHeader{"list", "[]", 0, "does not begin with '{'"},
        BadHeader{"not_json", "{\"a\":", 0, "not a JSON object"},
        BadHeader{"text_after_it", "{} x", 0, "not a JSON object"},
        BadHeader{"not_utf8", "{\"\xff\":1}", 0, "not a JSON object"},
        BadHeader{"same_name_twice",
                  R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                  R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                  4, "tensor a stands there twice"},
        BadHeader{"entry_is_a_number", R"({"a":3})", 0, "tensor a has no object"},
        BadHeader{"no_dtype", R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4,
                  "tensor a lacks the field dtype"},
        BadHeader{"no_shape", R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4,
                  "tensor a lacks the field shape"},
        BadHeader{"no_offsets", R"({"a":{"dtype":"F32","shape":[1]}})", 4,
                  "tensor a lacks the field data_offsets"},
        BadHeader{"unknown_field",
                  R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"stride":1}})", 4,
                  "tensor a has an unknown field stride"},
        BadHeader{"dtype_is_a_number", R"({"a":{"dtype":32,"shape":[1],"data_offsets":[0,4]}})", 4,
                  "tensor a has a dtype that is not a text"},
        BadHeader{"unknown_dtype", R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,4]}})", 4,
                  "tensor a has the unknown type F4", absl::StatusCode::kUnimplemented},
        BadHeader{"shape_is_a_number", R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4,
                  "tensor a has a shape that is not a list"},
        BadHeader{"negative_size", R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4,
                  "tensor a has the size -1"},
        BadHeader{"fractional_size", R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})",
                  4, "tensor a has the size 1.0"},
        BadHeader{"huge_size",
                  R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4,
                  "tensor a has the size 18446744073709551615"},
        BadHeader{"product_overflows",
                  R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
                  0, "[4294967296, 4294967296], which fits nowhere"},
        BadHeader{"one_offset", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4,
                  "tensor a has data_offsets [0]"},
        BadHeader{"negative_offset", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})",
                  4, "tensor a has data_offsets [-4,0]"},
        BadHeader{"ends_before_it_begins",
                  R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4,
                  "tensor a ends at 0 before it begins at 4"},
        BadHeader{"beyond_the_file", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7,
                  "the file has 7: it is cut off"},
        BadHeader{"huge_offset",
                  R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,)"
                  R"(18446744073709551615]}})",
                  4, "it is cut off"},
        BadHeader{"size_against_shape", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
                  4, "tensor a of type F32 and shape [2] needs 8 bytes and has 4"},
        BadHeader{"size_against_type", R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,8]}})",
                  8, "tensor a of type BF16 and shape [2] needs 4 bytes and has 8"},
        BadHeader{"overlap",
                  R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                  12, "tensors a and b overlap"},
        BadHeader{"hole",
                  R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                  12, "4 bytes before tensor b belong to no tensor"},
        BadHeader{"bytes_left", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5,
                  "the last 1 bytes belong to no tensor"},
        BadHeader{"metadata_is_a_list", R"({"__metadata__":[]})", 0, "__metadata__"},
        BadHeader{"metadata_of_numbers", R"({"__metadata__":{"a":1}})", 0,
                  "__metadata__ has a, which is not a text"}),
    [](const auto& test) { return std::string(test.param.name); });

class SafetensorsTest : public ::testing::Test {
 protected:
  static SafetensorsWriter Writer(const std::string& path, std::vector<TensorInfo> tensors) {
    auto writer = SafetensorsWriter::Create(path, std::move(tensors), {{"format", "pt"}});
    EXPECT_TRUE(writer.ok()) << writer.status();
    return *std::move(writer);
  }
  static std::vector<float> Values(const SafetensorsFile& file, const std::string& name) {
    const TensorInfo* tensor = file.Find(name);
    EXPECT_NE(tensor, nullptr) << name;
    if (tensor == nullptr) return {};
    std::vector<float> out(tensor->elements());
    EXPECT_TRUE(file.Read(*tensor, out).ok());
    return out;
  }

  data_testing::TempFolder folder_;
  const std::string path_ = folder_ / "t.safetensors";
};

TEST_F(SafetensorsTest, ALengthBeyondTheFileOrTheFormatsBoundIsRefused) {
  std::string bytes = FileBytes("{}", 0);
  const uint64_t long_header = 3;
  std::memcpy(bytes.data(), &long_header, sizeof(long_header));
  data_testing::WriteFile(path_, bytes);
  auto file = SafetensorsFile::Open(path_);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(file.status().message(), HasSubstr("header would be 3 bytes, the file has 10"));
  for (const uint64_t length : {kMaxHeaderBytes + 1, ~uint64_t{0}}) {
    std::memcpy(bytes.data(), &length, sizeof(length));
    data_testing::WriteFile(path_, bytes);
    file = SafetensorsFile::Open(path_);
    EXPECT_EQ(file.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(file.status().message(), HasSubstr("more than the format's 100000000"));
  }
}

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  SafetensorsWriter writer = Writer(path_, {{.name = "a", .shape = {3}}, {.name = "b"}});
  ASSERT_TRUE(writer.Add(std::vector<float>{1, 2, 3}).ok());
  ASSERT_TRUE(writer.Add(std::vector<float>{4}).ok());
  ASSERT_TRUE(writer.Finish().ok());
  const std::string bytes = data_testing::ReadFile(path_);
  const std::string cut = folder_ / "cut";
  for (size_t size = 0; size < bytes.size(); ++size) {
    data_testing::WriteFile(cut, bytes.substr(0, size));
    const auto file = SafetensorsFile::Open(cut);
    EXPECT_EQ(file.status().code(), absl::StatusCode::kDataLoss) << size;
    EXPECT_THAT(file.status().message(), HasSubstr(cut));
  }
}

// For the sanitizers: whatever a broken file says, no byte outside it is read.
TEST_F(SafetensorsTest, AnyChangedByteIsReadOrRefusedButStaysInsideTheFile) {
  SafetensorsWriter writer =
      Writer(path_, {{.name = "a", .type = ElementType::kBF16, .shape = {3, 5}}, {.name = "b"}});
  ASSERT_TRUE(writer.Add(std::vector<float>(15, 1.0F)).ok());
  ASSERT_TRUE(writer.Add(std::vector<float>{4}).ok());
  ASSERT_TRUE(writer.Finish().ok());
  const std::string bytes = data_testing::ReadFile(path_);
  const std::string changed_path = folder_ / "changed";
  size_t refused = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const char c : {'9', ']', '\xff'}) {
      std::string changed = bytes;
      changed[at] = c;
      data_testing::WriteFile(changed_path, changed);
      const auto file = SafetensorsFile::Open(changed_path);
      refused += file.ok() ? 0 : 1;
      if (!file.ok()) continue;
      for (const TensorInfo& tensor : file->tensors()) {
        std::vector<float> values(tensor.elements());
        const absl::Status status = file->Read(tensor, values);
        EXPECT_TRUE(status.ok() || absl::IsUnimplemented(status)) << status;
      }
    }
  }
  EXPECT_GT(refused, bytes.size());
}

TEST_F(SafetensorsTest, FilesThatAreNotThereAndFoldersAreNamed) {
  EXPECT_EQ(SafetensorsFile::Open(folder_ / "none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(SafetensorsFile::Open(folder_.path()).status().message(),
              HasSubstr("not a regular file"));
}

TEST_F(SafetensorsTest, EveryTypeComesBackAsWritten) {
  // All of them exist in each of the three formats.
  const std::vector<float> values = {0.0F, -0.0F, 1, -2, 0.5F, 0x1p-14F, 96, kInfinity, -kInfinity};
  SafetensorsWriter writer =
      Writer(path_, {{.name = "f32", .type = ElementType::kF32, .shape = {3, 3}},
                     {.name = "bf16", .type = ElementType::kBF16, .shape = {9}},
                     {.name = "none", .type = ElementType::kF16, .shape = {2, 0}},
                     {.name = "f16", .type = ElementType::kF16, .shape = {1, 9}},
                     {.name = "scalar", .type = ElementType::kBF16, .shape = {}}});
  ASSERT_TRUE(writer.Add(values).ok());
  ASSERT_TRUE(writer.Add(values).ok());
  ASSERT_TRUE(writer.Add({}).ok());
  ASSERT_TRUE(writer.Add(values).ok());
  ASSERT_TRUE(writer.Add(std::vector<float>{-3}).ok());
  EXPECT_FALSE(SafetensorsFile::Open(path_).ok()) << "is there before it is whole";
  ASSERT_TRUE(writer.Finish().ok());

  const auto file = SafetensorsFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors().size(), 5u);
  EXPECT_EQ(file->tensors()[1].name, "bf16");
  EXPECT_EQ(file->Find("f32")->shape, (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(file->metadata().at("format"), "pt");
  for (const char* name : {"f32", "bf16", "f16"}) {
    const std::vector<float> back = Values(*file, name);
    EXPECT_EQ(std::memcmp(back.data(), values.data(), values.size() * sizeof(float)), 0) << name;
  }
  EXPECT_TRUE(Values(*file, "none").empty());
  EXPECT_EQ(Values(*file, "scalar"), std::vector<float>{-3});
  EXPECT_EQ(file->Find("absent"), nullptr);
  EXPECT_EQ(folder_.entries(), 1u);
}

TEST_F(SafetensorsTest, TypesThatAreNotReadAreListedAndRefusedByName) {
  data_testing::WriteFile(
      path_, FileBytes(R"({"ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", 8));
  const auto file = SafetensorsFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<float> out(1);
  const absl::Status status = file->Read(*file->Find("ids"), out);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("tensor ids has type I64"));
}

TEST_F(SafetensorsTest, AWrongNumberOfValuesIsRefused) {
  SafetensorsWriter writer = Writer(path_, {{.name = "a", .shape = {2}}});
  EXPECT_THAT(writer.Add(std::vector<float>(3)).message(), HasSubstr("shape [2] has 3 elements"));
  EXPECT_EQ(writer.Finish().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(writer.Add(std::vector<float>(2)).ok());
  EXPECT_FALSE(writer.Add(std::vector<float>(2)).ok());
  ASSERT_TRUE(writer.Finish().ok());
  const auto file = SafetensorsFile::Open(path_);
  std::vector<float> out(1);
  EXPECT_EQ(file->Read(file->tensors()[0], out).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SafetensorsTest, WhatCannotBeWrittenIsRefusedBeforeAFileIsThere) {
  const auto code = [&](std::vector<TensorInfo> tensors) {
    return SafetensorsWriter::Create(path_, std::move(tensors), {}).status().code();
  };
  EXPECT_EQ(code({{.name = "a", .type = ElementType::kI64}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{.name = "a"}, {.name = "a"}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{.name = "a", .shape = {-1}}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{.name = "a", .shape = {int64_t{1} << 62, 8}}}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(folder_.entries(), 0u);
}

TEST_F(SafetensorsTest, AWriterThatIsGivenUpLeavesNothing) {
  { SafetensorsWriter writer = Writer(path_, {{.name = "a", .shape = {2}}}); }
  EXPECT_EQ(folder_.entries(), 0u);
}

// --- 16-bit formats -----------------------------------------------------------------------------

TEST(FloatFormatsTest, EveryHalfAndEveryBfloat16SurvivesAsAFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float from_half = FromHalf(half);
    const float from_bfloat = FromBfloat16(half);
    if (std::isnan(from_half)) {
      EXPECT_TRUE(std::isnan(FromHalf(ToHalf(from_half)))) << bits;
    } else {
      EXPECT_EQ(ToHalf(from_half), half) << bits;
    }
    if (std::isnan(from_bfloat)) {
      EXPECT_TRUE(std::isnan(FromBfloat16(ToBfloat16(from_bfloat)))) << bits;
    } else {
      EXPECT_EQ(ToBfloat16(from_bfloat), half) << bits;
    }
  }
}

// The value by the definition of the format: sign, exponent, fraction.
double HalfByDefinition(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1F;
  const double fraction = bits & 0x3FF;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(FloatFormatsTest, HalfIsIeeeBinary16) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7C00) == 0x7C00) continue;
    ASSERT_EQ(FromHalf(static_cast<uint16_t>(bits)), HalfByDefinition(static_cast<uint16_t>(bits)));
  }
  EXPECT_EQ(FromHalf(0x7C00), kInfinity);
  EXPECT_EQ(FromHalf(0xFC00), -kInfinity);
  EXPECT_TRUE(std::isnan(FromHalf(0x7C01)));
}

TEST(FloatFormatsTest, BetweenTwoHalvesTheNearerIsTakenAndTheEvenOneInTheMiddle) {
  // Neighbours from zero over subnormals to the largest finite one.
  for (uint32_t low = 0; low < 0x7BFF; ++low) {
    const double a = HalfByDefinition(static_cast<uint16_t>(low));
    const double b = HalfByDefinition(static_cast<uint16_t>(low + 1));
    const auto middle = static_cast<float>((a + b) / 2);  // exact
    const uint32_t even = low % 2 == 0 ? low : low + 1;
    ASSERT_EQ(ToHalf(middle), even);
    ASSERT_EQ(ToHalf(std::nextafter(middle, 0.0F)), low);
    ASSERT_EQ(ToHalf(std::nextafter(middle, kInfinity)), low + 1);
    ASSERT_EQ(ToHalf(-middle), even | 0x8000);
  }
  EXPECT_EQ(ToHalf(std::nextafter(65520.0F, 0.0F)), 0x7BFF);
  EXPECT_EQ(ToHalf(65520.0F), 0x7C00);
  EXPECT_EQ(ToHalf(std::numeric_limits<float>::max()), 0x7C00);
  EXPECT_EQ(ToHalf(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(FloatFormatsTest, Bfloat16RoundsToNearestEven) {
  EXPECT_EQ(ToBfloat16(std::bit_cast<float>(0x3F808000U)), 0x3F80);  // in the middle: even
  EXPECT_EQ(ToBfloat16(std::bit_cast<float>(0x3F818000U)), 0x3F82);
  EXPECT_EQ(ToBfloat16(std::bit_cast<float>(0x3F808001U)), 0x3F81);
  EXPECT_EQ(ToBfloat16(std::bit_cast<float>(0x3F807FFFU)), 0x3F80);
  EXPECT_EQ(ToBfloat16(std::numeric_limits<float>::max()), 0x7F80);  // rounds up to infinity
  // A NaN whose fraction lies in the lower half stays a NaN.
  EXPECT_TRUE(std::isnan(FromBfloat16(ToBfloat16(std::bit_cast<float>(0x7F800001U)))));
}

}  // namespace
}  // namespace sparsebalance::model_io
