#include "worker/data/digest.h"

#include <openssl/evp.h>

#include <array>
#include <bit>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

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

absl::StatusOr<uint64_t> BatchDigest(std::span<const uint64_t> ids,
                                     std::span<const int64_t> lengths) {
  if (ids.size() != lengths.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", ids.size(), " ids has ",
                                                   lengths.size(), " lengths; give one for each"));
  }
  Sha256 digest;
  digest.Add("sparsebalance.batch.v1");
  digest.AddU64(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (lengths[i] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("sequence ", ids[i], " has the negative length ", lengths[i]));
    }
    digest.AddU64(ids[i]);
    digest.AddU64(static_cast<uint64_t>(lengths[i]));
  }
  return digest.Truncated64();
}

}  // namespace sparsebalance::data
