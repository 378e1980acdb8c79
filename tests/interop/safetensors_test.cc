#include "interop/safetensors.h"

#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/bytes.h"
#include "tests/interop/checkpoint_files.h"

namespace prefixd::interop {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kTwoTensors[] = R"({"__metadata__":{"format":"pt"},)"
                               R"("w":{"dtype":"F32","shape":[2,1],"data_offsets":[2,10]},)"
                               R"("b":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}})";

class SafetensorsTest : public CheckpointTest {
 protected:
  absl::Status StatusOf(const std::string& name) const {
    return SafetensorsFile::Open(PathOf(name)).status();
  }
  // Refused as InvalidArgument with the file's name; gives back the message.
  std::string Refusal(const std::string& header, const std::string& data) const {
    WriteSafetensors("bad.safetensors", header, data);
    return RefusalOfFile();
  }
  std::string RefusalOfFile() const {
    const absl::Status status = StatusOf("bad.safetensors");
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.ToString(), HasSubstr("bad.safetensors"));
    return status.ToString();
  }
};

TEST_F(SafetensorsTest, TensorsComeByNameWithDtypeShapeAndBytes) {
  WriteSafetensors("two.safetensors", kTwoTensors, "bbwwwwWWWW");
  const auto file = SafetensorsFile::Open(PathOf("two.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->tensors().size(), 2u);
  const Tensor& b = (*file)->tensors()[0];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.dtype, TensorDtype::kBf16);
  EXPECT_TRUE(b.shape.empty());
  EXPECT_EQ(base::AsText(b.bytes), "bb");
  const Tensor* const w = (*file)->Find("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->shape, (std::vector<uint64_t>{2, 1}));
  EXPECT_EQ(base::AsText(w->bytes), "wwwwWWWW");
  EXPECT_EQ((*file)->Find("x"), nullptr);
  EXPECT_EQ((*file)->metadata().at("format"), "pt");
}

TEST_F(SafetensorsTest, EveryDtypeHasItsSize) {
  const std::vector<std::pair<std::string, uint32_t>> dtypes = {
      {"F32", 4},     {"F16", 2},         {"BF16", 2},        {"U8", 1},     {"U32", 4},
      {"I32", 4},     {"I64", 8},         {"BOOL", 1},        {"I8", 1},     {"U16", 2},
      {"I16", 2},     {"U64", 8},         {"F64", 8},         {"C64", 8},    {"F8_E4M3", 1},
      {"F8_E5M2", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1}, {"F8_E8M0", 1}};
  for (const auto& [name, bytes] : dtypes) {
    WriteSafetensors("one.safetensors",
                     R"({"t":{"dtype":")" + name + R"(","shape":[3],"data_offsets":[0,)" +
                         std::to_string(3 * bytes) + "]}}",
                     std::string(3 * bytes, 'x'));
    const auto file = SafetensorsFile::Open(PathOf("one.safetensors"));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(ToString((*file)->tensors()[0].dtype), name);
    EXPECT_EQ(BytesOf((*file)->tensors()[0].dtype), bytes);
  }
}

TEST_F(SafetensorsTest, ElementsOfFourAndSixBitsFillWholeBytesTogether) {
  const auto refusal = [&](const std::string& dtype, const std::string& shape, size_t bytes) {
    WriteSafetensors("small.safetensors",
                     R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape +
                         R"(,"data_offsets":[0,)" + std::to_string(bytes) + "]}}",
                     std::string(bytes, 'x'));
    return std::string(StatusOf("small.safetensors").message());
  };
  EXPECT_EQ(refusal("F4", "[2,3]", 3), "");
  EXPECT_EQ(refusal("F6_E2M3", "[4]", 3), "");
  EXPECT_EQ(refusal("F6_E3M2", "[8]", 6), "");
  EXPECT_THAT(refusal("F4", "[2,3]", 6), HasSubstr("has 6 bytes, its shape wants 3"));
  EXPECT_THAT(refusal("F4", "[3]", 1), HasSubstr("has 1 bytes, its shape wants 1.5"));
}

TEST_F(SafetensorsTest, MetadataThatIsNullIsNone) {  // as MLX writes what it was given none for
  WriteSafetensors("null.safetensors", R"({"__metadata__":null})", "");
  EXPECT_TRUE(StatusOf("null.safetensors").ok()) << StatusOf("null.safetensors");
}

TEST_F(SafetensorsTest, EmptyTensorsAndAnEmptyFileAreFine) {
  WriteSafetensors("empty.safetensors",
                   R"({"z":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]}})", "");
  EXPECT_TRUE(StatusOf("empty.safetensors").ok()) << StatusOf("empty.safetensors");
  WriteSafetensors("none.safetensors", "{}", "");
  EXPECT_TRUE(StatusOf("none.safetensors").ok());
}

TEST_F(SafetensorsTest, AMissingFileIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(StatusOf("nowhere.safetensors")));
}

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  WriteSafetensors("two.safetensors", kTwoTensors, "bbwwwwWWWW");
  std::ifstream in(PathOf("two.safetensors"), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  for (size_t length = 0; length < whole.size(); ++length) {
    WriteText("bad.safetensors", whole.substr(0, length));
    RefusalOfFile();
  }
}

TEST_F(SafetensorsTest, HugeHeaderLengthsAreRefused) {
  for (uint64_t length :
       {uint64_t{100'000'000}, uint64_t{1} << 40, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    WriteWithLength("bad.safetensors", length, "{}", "");
    EXPECT_THAT(RefusalOfFile(), HasSubstr("header of " + std::to_string(length)));
  }
}

TEST_F(SafetensorsTest, AHeaderOfOneHundredMegabytesIsRefusedUnreadAlthoughTheFileHoldsIt) {
  WriteWithLength("bad.safetensors", kMaxHeaderBytes, "{}", "");
  std::filesystem::resize_file(PathOf("bad.safetensors"), 8 + kMaxHeaderBytes);  // sparse
  EXPECT_THAT(RefusalOfFile(), HasSubstr("limit 100000000"));
}

TEST_F(SafetensorsTest, HeadersThatAreNotTensorListsAreRefused) {
  EXPECT_THAT(Refusal("", ""), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refusal("{", ""), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refusal("[]", ""), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refusal("{\"a\xFF\":1}", ""), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refusal(std::string(200'000, '['), ""), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refusal(R"({"__metadata__":3})", ""), HasSubstr("__metadata__"));
  EXPECT_THAT(Refusal(R"({"__metadata__":{"a":3}})", ""), HasSubstr("__metadata__"));
  EXPECT_THAT(Refusal(R"({"t":5})", ""), HasSubstr("tensor t: has no dtype"));
}

TEST_F(SafetensorsTest, BadTensorsAreRefusedByName) {
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  const std::string data(8, 'd');
  struct Case {
    std::string dtype, shape, offsets, what;
  };
  const Case cases[] = {
      {R"("F8_E9M3")", "[8]", "[0,8]", "F8_E9M3 is not one of F32"},
      {"7", "[8]", "[0,8]", "is not one of"},
      {R"("U8")", "8", "[0,8]", "shape is not a list"},
      {R"("U8")", "[-8]", "[0,8]", "not a size"},
      {R"("U8")", "[8.0]", "[0,8]", "not a size"},
      {R"("U8")", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,8]", "[0,8]", "at most 16"},
      {R"("U8")", "[8]", "[0]", "not a pair"},
      {R"("U8")", "[8]", "[0,8,9]", "not a pair"},
      {R"("U8")", "[8]", "[0,-8]", "not a pair"},
      {R"("U8")", "[8]", R"(["0",8])", "not a pair"},
      {R"("U8")", "[9]", "[0,9]", "the file holds 8 bytes"},
      {R"("U8")", "[8]", "[8,0]", "the file holds 8 bytes"},
      {R"("U8")", "[8]", "[18446744073709551608,18446744073709551615]", "the file holds 8 bytes"},
      {R"("U8")", "[7]", "[0,8]", "its shape wants 7"},
      {R"("F32")", "[3]", "[0,8]", "its shape wants 12"},
      {R"("I64")", "[4611686018427387904,1]", "[0,8]", "more than 2^61"},
      {R"("F32")", "[4294967296,4294967296]", "[0,8]", "more than 2^61"},
      {R"("U8")", "[7]", "[1,8]", "begins at 1"},
      {R"("U8")", "[7]", "[0,7]", "the tensors use 7"},
  };
  for (const Case& c : cases) {
    const std::string message = Refusal(tensor(c.dtype, c.shape, c.offsets), data);
    EXPECT_THAT(message, HasSubstr(c.what)) << c.dtype << c.shape << c.offsets;
  }
}

TEST_F(SafetensorsTest, OverlapsAndHolesAreRefused) {
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  EXPECT_THAT(Refusal(two("[0,4]", "[3,7]"), "12345678"),
              AllOf(HasSubstr("tensor b"), HasSubstr("begins at 3")));
  EXPECT_THAT(Refusal(two("[0,4]", "[0,4]"), "1234"), HasSubstr("begins at 0"));
  EXPECT_THAT(Refusal(two("[0,4]", "[5,9]"), "123456789"), HasSubstr("begins at 5"));
  EXPECT_THAT(Refusal(two("[4,8]", "[0,4]"), "123456789"), HasSubstr("the tensors use 8"));
}

TEST_F(SafetensorsTest, ANameGivenTwiceIsRefused) {
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                      R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                      "12345678"),
              HasSubstr("tensor a"));
}

// Whatever the header says, Open ends in a value or an error and every span lies in the file.
TEST_F(SafetensorsTest, DamagedHeadersNeverGiveSpansOutsideTheFile) {
  std::mt19937 random(23);
  const std::string header = kTwoTensors;
  for (int round = 0; round < 400; ++round) {
    std::string damaged = header;
    for (size_t n = 1 + random() % 3; n > 0; --n) {
      damaged[random() % damaged.size()] = "0123456789[]{},:\"-"[random() % 18];
    }
    WriteSafetensors("bad.safetensors", damaged, "bbwwwwWWWW");
    const auto file = SafetensorsFile::Open(PathOf("bad.safetensors"));
    if (!file.ok()) continue;
    uint64_t bytes = 0;
    for (const Tensor& tensor : (*file)->tensors()) {
      for (std::byte b : tensor.bytes) bytes += b != std::byte{0};
    }
    EXPECT_EQ(bytes, 10u);
  }
}

TEST_F(SafetensorsTest, TheShippedModelOpensAsACheckpoint) {
  const auto checkpoint = Checkpoint::Open(PREFIXD_TEST_DATA "/model");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto embedding = checkpoint->Get("model.embed_tokens.weight");
  ASSERT_TRUE(embedding.ok()) << embedding.status();
  EXPECT_EQ(embedding->dtype, TensorDtype::kBf16);
  EXPECT_EQ(embedding->shape, (std::vector<uint64_t>{256, 320}));
  const absl::Status missing = checkpoint->Get("model.nothing").status();
  EXPECT_THAT(missing.ToString(), HasSubstr("model.nothing"));
}

class ShardedTest : public SafetensorsTest {
 protected:
  void SetUp() override {
    SafetensorsTest::SetUp();
    WriteSafetensors("s1.safetensors", R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                     "bb");
    WriteSafetensors("s2.safetensors",
                     R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                     R"("unnamed":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                     "au");
  }
  void WriteIndex(const std::string& weight_map) const {
    WriteText("model.safetensors.index.json", R"({"metadata":{},"weight_map":)" + weight_map + "}");
  }
  absl::Status Opened() const { return Checkpoint::Open(directory()).status(); }
};

TEST_F(ShardedTest, TheIndexJoinsShardsIntoOneList) {
  WriteIndex(R"({"b":"s1.safetensors","a":"s2.safetensors"})");
  const auto checkpoint = Checkpoint::Open(directory());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_EQ(checkpoint->tensors().size(), 2u);
  EXPECT_EQ(base::AsText(checkpoint->tensors()[0].bytes), "a");
  EXPECT_EQ(base::AsText(checkpoint->Find("b")->bytes), "bb");
  EXPECT_EQ(checkpoint->Find("unnamed"), nullptr);
}

TEST_F(ShardedTest, BadIndexesAreRefused) {
  EXPECT_TRUE(absl::IsNotFound(Opened()));  // neither file
  WriteText("model.safetensors.index.json", "{");
  EXPECT_THAT(Opened().ToString(), HasSubstr("no weight_map"));
  WriteIndex("{}");
  EXPECT_THAT(Opened().ToString(), HasSubstr("empty"));
  WriteIndex(R"({"a":3})");
  EXPECT_THAT(Opened().ToString(), HasSubstr("tensor a names no file"));
  for (const char* outside : {"../s1.safetensors", "/etc/passwd", "..", "."}) {
    WriteIndex(std::string(R"({"a":")") + outside + R"("})");
    EXPECT_THAT(Opened().ToString(), HasSubstr("not a file of this directory"));
  }
  WriteIndex(R"({"a":"s1.safetensors"})");
  EXPECT_THAT(Opened().ToString(), HasSubstr("tensor a is not in s1.safetensors"));
  WriteIndex(R"({"a":"s3.safetensors"})");
  EXPECT_TRUE(absl::IsNotFound(Opened()));
  EXPECT_THAT(Opened().ToString(), HasSubstr("s3.safetensors"));
}

}  // namespace
}  // namespace prefixd::interop
