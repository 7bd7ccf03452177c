#include "step7_parallel/workers/run_fingerprint.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <string_view>
#include <vector>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

constexpr int64_t kPiece = int64_t{1} << 20;
constexpr int64_t kSamples = 16;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    check(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void add(const void* bytes, size_t size) { check(EVP_DigestUpdate(context_.get(), bytes, size) == 1); }
  void add(std::string_view field) {  // with its length before it: fields do not run into each other
    add_number(std::ssize(field));
    add(field.data(), field.size());
  }
  void add_number(int64_t number) { add(&number, sizeof number); }
  uint64_t finish() {
    std::array<unsigned char, 32> digest;
    check(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
    uint64_t first = 0;
    std::memcpy(&first, digest.data(), sizeof first);
    return first;
  }

 private:
  static void check(bool ok) { LADDER_CHECK(ok, "OpenSSL could not compute a SHA-256"); }

  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path)
      : path_(path),
        size_(static_cast<int64_t>(std::filesystem::file_size(path))),
        file_(path, std::ios::binary) {}
  int64_t size() const { return size_; }
  // At most a piece from there on.
  void add_to(Sha256& hash, int64_t from) {
    bytes_.resize(static_cast<size_t>(std::min(kPiece, size_ - from)));
    file_.seekg(from);
    LADDER_CHECK(file_.read(bytes_.data(), std::ssize(bytes_)), "{} cannot be read", path_.string());
    hash.add(bytes_.data(), bytes_.size());
  }

 private:
  std::filesystem::path path_;
  int64_t size_;
  std::ifstream file_;
  std::vector<char> bytes_;
};

void add_whole(Sha256& hash, const std::filesystem::path& path) {
  InputFile file(path);
  for (int64_t at = 0; at < file.size(); at += kPiece) file.add_to(hash, at);
}

void add_samples(Sha256& hash, const std::filesystem::path& path) {
  InputFile file(path);
  hash.add_number(file.size());
  for (int64_t sample = 0; sample < std::min(kSamples, (file.size() + kPiece - 1) / kPiece); ++sample)
    file.add_to(hash, file.size() / kSamples * sample);
}

uint64_t fingerprint_of_model(const std::filesystem::path& model) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(model))
    if (entry.path().extension() == ".json" || entry.path().extension() == ".safetensors")
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());  // a folder has no order of its own
  Sha256 hash;
  for (const std::filesystem::path& path : files) {
    hash.add(path.filename().native());
    path.extension() == ".json" ? add_whole(hash, path) : add_samples(hash, path);
  }
  return hash.finish();
}

}  // namespace

RunFingerprint run_fingerprint(const std::filesystem::path& model, const std::filesystem::path& program) {
  Sha256 hash;
  add_whole(hash, program);
  return {hash.finish(), fingerprint_of_model(model)};
}

void expect_same(const RunFingerprint& mine, const RunFingerprint& theirs, const std::string& them) {
  LADDER_CHECK(mine.program == theirs.program,
               "this program is another build than that of {}: expected the same file", them);
  LADDER_CHECK(mine.model == theirs.model,
               "the files of --model are others than those that {} sees: expected the same checkpoint", them);
}

}  // namespace ladder
