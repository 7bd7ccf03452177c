// Task 2.2: safetensors files and folders, good and malformed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "step1_layers/core/error.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "tests/support/error_of.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::encode_safetensors;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using testing::write_file;
using testing::write_safetensors;

std::string with_length(const std::string& header, const std::string& data = "") {
  std::string file(8, '\0');
  const uint64_t length = header.size();
  for (int i = 0; i < 8; ++i) file[static_cast<size_t>(i)] = static_cast<char>(length >> (8 * i));
  return file + header + data;
}

TEST(Task2_2_Safetensors, ReadsEveryDtypeAndShape) {
  TemporaryFolder folder;
  std::vector<std::pair<std::string, Tensor>> tensors = {
      {"f32", Tensor::zeros({2, 3}, DType::f32)},    {"bf16", Tensor::zeros({5}, DType::bf16)},
      {"f16", Tensor::zeros({1, 2, 3}, DType::f16)}, {"i64", Tensor::zeros({2}, DType::i64)},
      {"i32", Tensor::zeros({3}, DType::i32)},       {"u8", Tensor::zeros({7}, DType::u8)},
      {"scalar", Tensor::zeros({}, DType::f64)},     {"empty", Tensor::zeros({0, 4}, DType::f32)}};
  unsigned char next = 1;
  for (auto& [name, tensor] : tensors)
    for (int64_t i = 0; i < tensor.nbytes(); ++i) static_cast<unsigned char*>(tensor.raw())[i] = next++;
  write_safetensors(folder / "a.safetensors", tensors);

  SafetensorsFile file(folder / "a.safetensors");
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const auto info = std::find_if(file.tensors().begin(), file.tensors().end(),
                                   [&name = name](const auto& entry) { return entry.name == name; });
    ASSERT_NE(info, file.tensors().end()) << name;
    EXPECT_EQ(info->dtype, tensor.dtype()) << name;
    EXPECT_TRUE(info->shape == tensor.shape()) << name;
    const Tensor read = file.tensor(*info);
    ASSERT_EQ(read.nbytes(), tensor.nbytes());
    if (tensor.nbytes() > 0) {
      EXPECT_EQ(std::memcmp(read.raw(), tensor.raw(), static_cast<size_t>(tensor.nbytes())), 0) << name;
    }
  }
}

TEST(Task2_2_Safetensors, AlignsWhatTheFileDoesNot) {
  TemporaryFolder folder;
  // A header of odd length puts the floats at an odd address.
  const float values[2] = {1.5f, -2.25f};
  std::string header = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  if (header.size() % 2 == 0) header += ' ';
  write_file(folder / "a.safetensors",
             with_length(header, std::string(reinterpret_cast<const char*>(values), 8)));
  SafetensorsFile file(folder / "a.safetensors");
  const Tensor x = file.tensor(file.tensors()[0]);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(x.raw()) % alignof(float), 0u);
  EXPECT_EQ(x.at<float>({0}), 1.5f);
  EXPECT_EQ(x.at<float>({1}), -2.25f);
}

TEST(Task2_2_Safetensors, KeepsTheMappingAliveWithItsTensors) {
  TemporaryFolder folder;
  Tensor tensor;
  {
    Tensor source = Tensor::empty({3000}, DType::f32);
    for (int i = 0; i < 3000; ++i) source.data<float>()[i] = static_cast<float>(i);
    write_safetensors(folder / "a.safetensors", {{"x", source}});
    SafetensorsFile file(folder / "a.safetensors");
    tensor = file.tensor(file.tensors()[0]);
    file.release(file.tensors()[0]);  // the pages come back from the file when they are read again
  }
  for (int i = 0; i < 3000; ++i) ASSERT_EQ(tensor.at<float>({i}), static_cast<float>(i));
}

struct Malformation {
  const char* name;
  std::string bytes;
  const char* expected;  // a part of the message; nullptr: the file is good
};

void PrintTo(const Malformation& value, std::ostream* out) {
  *out << value.name;
}

std::vector<Malformation> malformations() {
  const std::string four(4, 'x'), eight(8, 'x');
  auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"("a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  auto file = [&](const std::string& dtype, const std::string& shape, const std::string& offsets,
                  const std::string& data) {
    return with_length(std::string("{") + entry(dtype, shape, offsets) + "}", data);
  };
  const std::string good = file("F32", "[1]", "[0,4]", four);
  const std::string b = R"("b":{"dtype":"U8","shape":[4],"data_offsets":)";
  std::string deep = R"({"a":)";
  for (int i = 0; i < 100000; ++i) deep += "[";
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += R"({"shape":)";
  return {
      {"good", good, nullptr},
      {"no_tensors", with_length("{}"), nullptr},
      {"leading_white_space", with_length(" \n\t {" + entry("U8", "[4]", "[0,4]") + "}", four), nullptr},
      {"trailing_white_space", with_length(std::string("{") + entry("U8", "[4]", "[0,4]") + "}    ", four),
       nullptr},
      {"metadata",
       with_length(R"({"__metadata__":{"format":"pt"},)" + entry("U8", "[4]", "[0,4]") + "}", four), nullptr},
      {"rank_zero", file("F32", "[]", "[0,4]", four), nullptr},
      {"zero_size", file("F32", "[0,7]", "[0,0]", ""), nullptr},
      {"order_of_names_is_free",
       with_length(std::string("{") + b + "[4,8]}," + entry("U8", "[4]", "[0,4]") + "}", eight), nullptr},

      {"empty_file", "", ""},
      {"shorter_than_the_length", good.substr(0, 7), ""},
      {"header_cut", good.substr(0, 20), ""},
      {"header_length_beyond_the_bound", std::string("\x01\xe1\xf5\x05\0\0\0\0", 8) + "{}", ""},
      {"header_length_minus_one", std::string(8, '\xff') + "{}", ""},
      {"header_length_zero", with_length(""), ""},
      {"header_of_white_space", with_length("   "), ""},
      {"data_cut", good.substr(0, good.size() - 1), ""},
      {"bytes_left_over", good + "x", ""},
      {"not_json", with_length("{oops}"), ""},
      {"unfinished_json", with_length(R"({"a":{"dtype":"F32")"), ""},
      {"two_values", with_length("{}{}"), ""},
      {"not_an_object", with_length("[1]"), ""},
      {"byte_order_mark", with_length("\xef\xbb\xbf{}"), ""},
      {"not_utf8", with_length("{\"\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", four),
       ""},
      {"tensor_is_a_number", with_length(R"({"a":3})"), "\"a\""},
      {"tensor_is_null", with_length(R"({"a":null})"), "\"a\""},
      {"nested_arrays", with_length(deep), "\"a\""},
      {"nested_objects", with_length(objects), ""},
      {"metadata_of_numbers", with_length(R"({"__metadata__":{"x":1}})"), "__metadata__"},
      {"metadata_nested", with_length(R"({"__metadata__":{"x":{}}})"), "__metadata__"},
      {"metadata_is_a_string", with_length(R"({"__metadata__":"x"})"), "__metadata__"},
      {"unknown_dtype", file("F31", "[1]", "[0,4]", four), "F31"},
      {"dtype_in_lower_case", file("f32", "[1]", "[0,4]", four), "f32"},
      {"dtype_is_a_number", with_length(R"({"a":{"dtype":3,"shape":[],"data_offsets":[0,0]}})"), "dtype"},
      {"no_dtype", with_length(R"({"a":{"shape":[4],"data_offsets":[0,4]}})", four), "dtype"},
      {"no_shape", with_length(R"({"a":{"dtype":"U8","data_offsets":[0,4]}})", four), "shape"},
      {"no_offsets", with_length(R"({"a":{"dtype":"U8","shape":[4]}})", four), "data_offsets"},
      {"unknown_field", with_length(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1}})", four),
       "\"x\""},
      {"field_twice",
       with_length(R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", four), "dtype"},
      {"tensor_twice",
       with_length(std::string("{") + entry("U8", "[4]", "[0,4]") + "," + entry("U8", "[4]", "[4,8]") + "}",
                   eight),
       "\"a\""},
      {"shape_negative", file("U8", "[-4]", "[0,4]", four), "\"a\""},
      {"shape_fraction", file("U8", "[4.0]", "[0,4]", four), "\"a\""},
      {"shape_string", file("U8", "[\"4\"]", "[0,4]", four), "\"a\""},
      {"shape_beyond_63_bits", file("U8", "[9223372036854775808]", "[0,4]", four), "\"a\""},
      {"shape_beyond_64_bits", file("U8", "[18446744073709551616]", "[0,4]", four), "\"a\""},
      {"seven_dimensions", file("U8", "[1,1,1,1,1,1,4]", "[0,4]", four), "\"a\""},
      {"product_overflows", file("U8", "[4294967296,4294967296]", "[0,0]", ""), "\"a\""},
      {"product_overflows_to_four", file("U8", "[4611686018427387905,4]", "[0,4]", four), "\"a\""},
      {"bytes_overflow", file("F32", "[4611686018427387904]", "[0,0]", ""), "\"a\""},
      {"overflow_beside_a_zero", file("U8", "[0,4294967296,4294967296]", "[0,0]", ""), "\"a\""},
      {"shape_and_bytes_disagree", file("F32", "[2]", "[0,4]", four), "\"a\""},
      {"more_bytes_than_the_shape_needs", file("F32", "[1]", "[0,8]", eight), "\"a\""},
      {"one_offset", file("U8", "[4]", "[0]", four), "\"a\""},
      {"three_offsets", file("U8", "[4]", "[0,4,8]", four), "\"a\""},
      {"end_before_begin", file("U8", "[4]", "[4,0]", four), "\"a\""},
      {"offset_negative", file("U8", "[4]", "[-4,0]", four), "\"a\""},
      {"end_outside_the_file", file("U8", "[64]", "[0,64]", four), ""},
      {"does_not_begin_at_zero", file("U8", "[4]", "[4,8]", eight), "\"a\""},
      {"hole",
       with_length(std::string("{") + entry("U8", "[4]", "[0,4]") + "," + b + "[5,9]}}", std::string(9, 'x')),
       "\"b\""},
      {"overlap",
       with_length(std::string("{") + entry("U8", "[4]", "[0,4]") + "," + b + "[2,6]}}", std::string(6, 'x')),
       "\"b\""},
      {"same_bytes_twice",
       with_length(std::string("{") + entry("U8", "[4]", "[0,4]") + "," + b + "[0,4]}}", four), "\"b\""},
      {"sum_of_sizes_overflows",
       with_length(
           R"({"a":{"dtype":"U8","shape":[9223372036854775744],"data_offsets":[0,9223372036854775744]},)"
           R"("b":{"dtype":"U8","shape":[128],"data_offsets":[9223372036854775744,64]}})",
           four),
       ""},
  };
}

class Task2_2_SafetensorsTable : public ::testing::TestWithParam<Malformation> {};

TEST_P(Task2_2_SafetensorsTable, IsAcceptedOrRefusedInOneLine) {
  TemporaryFolder folder;
  write_file(folder / "m.safetensors", GetParam().bytes);
  const std::string error = error_of([&] {
    SafetensorsFile file(folder / "m.safetensors");
    for (const auto& info : file.tensors()) EXPECT_EQ(file.tensor(info).nbytes(), info.nbytes());
  });
  if (GetParam().expected == nullptr) {
    EXPECT_EQ(error, "no error");
  } else {
    EXPECT_THAT(error, HasSubstr(GetParam().expected));
    EXPECT_THAT(error, HasSubstr("m.safetensors"));
    EXPECT_EQ(error.find('\n'), std::string::npos);
    EXPECT_LT(error.size(), 600u);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Task2_2_SafetensorsTable, ::testing::ValuesIn(malformations()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Task2_2_Safetensors, ShowsHostileNamesOnOneLine) {
  const std::string name = printable(std::string("a\nb\x1b[31m\xff") + std::string(5000, 'x'));
  EXPECT_EQ(name.find('\n'), std::string::npos);
  EXPECT_EQ(name.find('\x1b'), std::string::npos);
  EXPECT_LT(name.size(), 200u);
}

TEST(Task2_2_Safetensors, RefusesWhatIsNoRegularFile) {
  TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { SafetensorsFile file(folder.path()); }), HasSubstr(folder.path().string()));
  EXPECT_THAT(error_of([&] { SafetensorsFile file(folder / "x"); }), HasSubstr((folder / "x").string()));
  EXPECT_THAT(error_of([&] { SafetensorsFile file("/dev/null"); }), HasSubstr("/dev/null"));
}

// --- folders ---

Tensor numbers(std::initializer_list<float> values) {
  return Tensor::from(std::span<const float>(values.begin(), values.size()),
                      {static_cast<int64_t>(values.size())});
}

TEST(Task2_2_Checkpoint, ReadsShardsAsOneTable) {
  TemporaryFolder folder;
  write_safetensors(folder / "one.safetensors", {{"b", numbers({1, 2})}, {"a", numbers({3})}});
  write_safetensors(folder / "two.safetensors", {{"c", numbers({4, 5, 6})}});
  write_file(folder / "model.safetensors.index.json",
             R"({"metadata":{"total_size":1},"weight_map":{"a":"one.safetensors","b":"one.safetensors",)"
             R"("c":"two.safetensors"}})");
  Checkpoint checkpoint(folder.path());
  ASSERT_EQ(checkpoint.entries().size(), 3u);
  EXPECT_EQ(checkpoint.nbytes(), 24);
  EXPECT_EQ(checkpoint.find("a")->tensor().at<float>({0}), 3);
  EXPECT_EQ(checkpoint.find("c")->tensor().at<float>({2}), 6);
  EXPECT_EQ(checkpoint.find("d"), nullptr);
}

TEST(Task2_2_Checkpoint, FollowsLinksAsDownloadCachesMakeThem) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "snapshot");
  write_safetensors(folder / "blob", {{"a", numbers({3})}});
  std::filesystem::create_symlink("../blob", folder / "snapshot/model.safetensors");
  EXPECT_NE(Checkpoint(folder / "snapshot").find("a"), nullptr);
}

// AutoGPTQ names files by bits and group size.
TEST(Task2_2_Checkpoint, FilesMayHaveAnotherName) {
  TemporaryFolder one, shards;
  EXPECT_THAT(error_of([&] { Checkpoint checkpoint(one.path()); }), HasSubstr("model.safetensors"));
  write_safetensors(one / "gptq_model-4bit-128g.safetensors", {{"a", numbers({3})}});
  EXPECT_NE(Checkpoint(one.path()).find("a"), nullptr);
  write_safetensors(one / "other.safetensors", {{"b", numbers({3})}});
  EXPECT_THAT(error_of([&] { Checkpoint checkpoint(one.path()); }),
              ::testing::AllOf(HasSubstr("model.safetensors"), HasSubstr("2")));
  write_safetensors(one / "model.safetensors", {{"c", numbers({3})}});
  EXPECT_NE(Checkpoint(one.path()).find("c"), nullptr);
  EXPECT_EQ(Checkpoint(one.path()).find("a"), nullptr);

  write_safetensors(shards / "g-00001-of-00001.safetensors", {{"a", numbers({3})}});
  write_file(shards / "g.safetensors.index.json", R"({"weight_map":{"b":"g-00001-of-00001.safetensors"}})");
  EXPECT_THAT(error_of([&] { Checkpoint checkpoint(shards.path()); }),
              ::testing::AllOf(HasSubstr("g.safetensors.index.json"), HasSubstr("\"b\"")))
      << "an index goes before a file, and is compared with it";
  write_file(shards / "g.safetensors.index.json", R"({"weight_map":{"a":"g-00001-of-00001.safetensors"}})");
  EXPECT_NE(Checkpoint(shards.path()).find("a"), nullptr);
}

std::string error_of_index(const std::string& index) {
  TemporaryFolder folder;
  write_safetensors(folder / "one.safetensors", {{"a", numbers({3})}, {"b", numbers({3})}});
  write_safetensors(folder / "two.safetensors", {{"c", numbers({3})}, {"b", numbers({3})}});
  write_file(folder / "model.safetensors.index.json", index);
  return error_of([&] { Checkpoint checkpoint(folder.path()); });
}

TEST(Task2_2_Checkpoint, RefusesABadIndex) {
  EXPECT_EQ(error_of_index(R"({"weight_map":{"a":"one.safetensors"}})"), "no error");
  EXPECT_THAT(error_of_index("{"), HasSubstr("index.json"));
  EXPECT_THAT(error_of_index("[]"), HasSubstr("index.json"));
  EXPECT_THAT(error_of_index("{}"), HasSubstr("weight_map"));
  EXPECT_THAT(error_of_index(R"({"weight_map":[]})"), HasSubstr("weight_map"));
  EXPECT_THAT(error_of_index(R"({"weight_map":{"a":1}})"), HasSubstr("weight_map"));
  for (const char* name : {"", ".", "..", "../one.safetensors", "/etc/passwd", "x/one.safetensors",
                           "x\\\\one.safetensors", "one\\u0000.safetensors"})
    EXPECT_THAT(error_of_index(std::string(R"({"weight_map":{"a":")") + name + "\"}}"),
                HasSubstr("index.json"))
        << name;
  EXPECT_THAT(error_of_index(R"({"weight_map":{"a":"three.safetensors"}})"), HasSubstr("three.safetensors"));
  EXPECT_THAT(error_of_index(R"({"weight_map":{"z":"one.safetensors"}})"),
              ::testing::AllOf(HasSubstr("\"z\""), HasSubstr("one.safetensors")));
  EXPECT_THAT(
      error_of_index(R"({"weight_map":{"a":"one.safetensors","c":"two.safetensors"}})"),
      ::testing::AllOf(HasSubstr("\"b\""), HasSubstr("one.safetensors"), HasSubstr("two.safetensors")));
}

TEST(Task2_2_Checkpoint, RefusesAnIndexThatNamesAnotherShard) {
  TemporaryFolder folder;
  write_safetensors(folder / "one.safetensors", {{"a", numbers({3})}});
  write_safetensors(folder / "two.safetensors", {{"c", numbers({3})}});
  write_file(folder / "model.safetensors.index.json",
             R"({"weight_map":{"a":"two.safetensors","c":"one.safetensors"}})");
  EXPECT_THAT(error_of([&] { Checkpoint checkpoint(folder.path()); }),
              ::testing::AllOf(HasSubstr("index.json"), HasSubstr("safetensors")));
}

TEST(Task2_2_Checkpoint, NamesWhatIsMissing) {
  TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { Checkpoint checkpoint(folder.path()); }), HasSubstr(folder.path().string()));
}

}  // namespace
}  // namespace ladder
