#include "worker/comm/gloo_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "gloo/transport/tcp/address.h"

namespace sparsebalance::comm_internal {

using ::gloo::transport::tcp::Address;

std::vector<char> GlooAddress(const RendezvousBlob& blob, uint16_t port) {
  if (blob.family == 4) {
    sockaddr_in in = {};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    std::memcpy(&in.sin_addr, blob.address.data(), sizeof(in.sin_addr));
    return Address(reinterpret_cast<const sockaddr*>(&in), sizeof(in)).bytes();
  }
  sockaddr_in6 in = {};
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(port);
  in.sin6_scope_id = blob.scope_id;
  std::memcpy(&in.sin6_addr, blob.address.data(), sizeof(in.sin6_addr));
  return Address(reinterpret_cast<const sockaddr*>(&in), sizeof(in)).bytes();
}

absl::StatusOr<uint16_t> ReadAddress(const std::vector<char>& bytes, RendezvousBlob& blob) {
  const Address address(bytes);
  const sockaddr_storage& storage = address.getSockaddr();
  if (storage.ss_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, &storage, sizeof(in));
    blob.family = 4;
    std::memcpy(blob.address.data(), &in.sin_addr, sizeof(in.sin_addr));
    return ntohs(in.sin_port);
  }
  sockaddr_in6 in;
  std::memcpy(&in, &storage, sizeof(in));
  if (storage.ss_family != AF_INET6) {
    return absl::InvalidArgumentError(absl::StrCat("the listening address has family ",
                                                   storage.ss_family,
                                                   "; it must be an IPv4 or IPv6 address"));
  }
  blob.family = 6;
  std::memcpy(blob.address.data(), &in.sin6_addr, sizeof(in.sin6_addr));
  blob.scope_id = in.sin6_scope_id;
  return ntohs(in.sin6_port);
}

}  // namespace sparsebalance::comm_internal
