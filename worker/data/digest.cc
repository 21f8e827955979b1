#include "worker/data/digest.h"

#include <openssl/evp.h>

#include <array>
#include <bit>
#include <cstring>

#include "absl/strings/escaping.h"

namespace sparsebalance::data {

static_assert(std::endian::native == std::endian::little, "integers are digested in host order");

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();

  State() { EVP_DigestInit_ex(context, EVP_sha256(), nullptr); }
  ~State() { EVP_MD_CTX_free(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::array<unsigned char, 32> Finish() {
    std::array<unsigned char, 32> digest = {};
    EVP_DigestFinal_ex(context, digest.data(), nullptr);
    return digest;
  }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Add(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(state_->context, bytes.data(), bytes.size());
}

void Sha256::Add(std::string_view text) { Add(std::as_bytes(std::span(text))); }

void Sha256::AddU64(uint64_t value) { Add(std::as_bytes(std::span(&value, 1))); }

std::string Sha256::Hex() {
  const auto digest = state_->Finish();
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

uint64_t Sha256::Truncated64() {
  const auto digest = state_->Finish();
  uint64_t value = 0;
  std::memcpy(&value, digest.data(), sizeof(value));
  return value;
}

}  // namespace sparsebalance::data
