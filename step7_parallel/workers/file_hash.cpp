#include "step7_parallel/workers/file_hash.h"

#include <openssl/evp.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

constexpr int64_t kPiece = int64_t{1} << 20;
constexpr int64_t kSamples = 16;

void check(bool ok) {
  LADDER_CHECK(ok, "OpenSSL could not compute a SHA-256");
}

class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path)
      : path_(path),
        size_(static_cast<int64_t>(std::filesystem::file_size(path))),
        file_(path, std::ios::binary) {}
  int64_t size() const { return size_; }
  void add_to(Sha256& hash, int64_t from, int64_t size) {
    for (const int64_t end = std::min(size_, from + size); from < end; from += kPiece) {
      bytes_.resize(static_cast<size_t>(std::min(kPiece, end - from)));
      file_.seekg(from);
      LADDER_CHECK(file_.read(bytes_.data(), std::ssize(bytes_)), "{} cannot be read", path_.string());
      hash.add(bytes_.data(), bytes_.size());
    }
  }

 private:
  std::filesystem::path path_;
  int64_t size_;
  std::ifstream file_;
  std::vector<char> bytes_;
};

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new(), [](evp_md_ctx_st* context) { EVP_MD_CTX_free(context); }) {
  check(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::add(const void* bytes, size_t size) {
  check(EVP_DigestUpdate(context_.get(), bytes, size) == 1);
}

void Sha256::add(std::string_view field) {
  add_number(std::ssize(field));
  add(field.data(), field.size());
}

void Sha256::add_number(int64_t number) {
  add(&number, sizeof number);
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  check(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
  return digest;
}

void add_file(Sha256& hash, const std::filesystem::path& path) {
  InputFile file(path);
  file.add_to(hash, 0, file.size());
}

void add_file_begin(Sha256& hash, const std::filesystem::path& path, int64_t size) {
  InputFile(path).add_to(hash, 0, size);
}

void add_file_samples(Sha256& hash, const std::filesystem::path& path) {
  InputFile file(path);
  hash.add_number(file.size());
  if (file.size() <= kSamples * kPiece) return file.add_to(hash, 0, file.size());
  for (int64_t sample = 0; sample < kSamples; ++sample)
    file.add_to(hash, file.size() / kSamples * sample, kPiece);
}

}  // namespace ladder
