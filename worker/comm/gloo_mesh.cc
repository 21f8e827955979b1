#include "worker/comm/gloo_mesh.h"

#include <net/if.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/tcp/device.h"
#include "worker/comm/gloo_address.h"
#include "worker/comm/rendezvous_blob.h"

namespace sparsebalance::comm_internal {

// Fixed size, so that the receive can be posted before anything is known.
struct GlooMesh::Farewell {
  struct Message {
    int32_t lost_rank = -1;
    char reason[252] = {};
  } message;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  // What the listener learned; the buffer is of no more use then.
  enum class Heard { kNothing, kMessage, kEnd } heard = Heard::kNothing;
  std::string error;    // with kEnd
  absl::Time heard_at;  // with kMessage
};

namespace {

constexpr uint64_t kFarewellSlot = 0;  // collectives use other slots

// A peer that reads nothing for so long will not hear why this rank goes.
constexpr std::chrono::milliseconds kFarewellTimeout(1000);

// A message that takes longer may be one to a peer that is gone.
constexpr absl::Duration kPatience = absl::Milliseconds(100);

// A peer that leaves of its own accord has sent all it owed before it said so: what is awaited is
// here then, and its waiter only has to wake.
constexpr absl::Duration kLeavingGrace = absl::Seconds(10);

// Waits end by the watchdog; this is "never" without overflow.
constexpr std::chrono::milliseconds kNoGlooTimeout = std::chrono::hours(24 * 365);

// Gloo prefixes its messages with "[file:line] ", sometimes twice.
std::string WithoutSourceLines(std::string text) {
  while (!text.empty() && text.front() == '[') {
    const size_t end = text.find("] ");
    if (end == std::string::npos || text.find("/gloo/") > end) break;
    text.erase(0, end + 2);
  }
  return text;
}

void IgnoreSigpipe() {
  struct sigaction current = {};
  if (sigaction(SIGPIPE, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, nullptr);
}

}  // namespace

Transfer::~Transfer() {
  absl::MutexLock lock(&mesh_->mutex_);
  mesh_->pending_.erase(this);
}

GlooMesh::GlooMesh(int rank, int size, absl::Duration timeout)
    : rank_(rank), size_(size), timeout_(timeout) {}

GlooMesh::~GlooMesh() {
  if (watchdog_.joinable()) {
    {
      absl::MutexLock lock(&mutex_);
      stop_watching_ = true;
      StopListening();
      stopped_.SignalAll();
    }
    watchdog_.join();
    listener_.join();
  }
  Close("it left");
  // Buffers refer to the context and pairs to the device.
  farewells_.clear();
  farewells_sent_.clear();
  context_.reset();
  device_.reset();
}

absl::StatusOr<std::unique_ptr<GlooMesh>> GlooMesh::Connect(int rank, int size,
                                                            const GlooOptions& options,
                                                            const RendezvousExchange& exchange) {
  IgnoreSigpipe();
  std::unique_ptr<GlooMesh> mesh(new GlooMesh(rank, size, options.timeout));
  absl::Status status = mesh->OpenDevice(options);
  if (!status.ok()) return status;
  absl::StatusOr<std::string> own = mesh->OwnBlob(options);
  if (!own.ok()) return own.status();
  absl::StatusOr<std::vector<std::string>> blobs = exchange(*own);
  if (!blobs.ok()) {
    return absl::Status(
        blobs.status().code(),
        absl::StrCat("rank ", rank, ": exchange of addresses: ", blobs.status().message()));
  }
  if (blobs->size() != static_cast<size_t>(size)) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, ": the exchange returned ",
                                                   blobs->size(), " blobs for ", size, " ranks"));
  }
  if ((*blobs)[rank] != *own) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank,
                     ": the exchange returned another blob for this rank than it "
                     "was given; two processes may claim one rank"));
  }
  status = mesh->ConnectPeers(*blobs, options);
  if (status.ok()) status = mesh->AwaitFarewells();
  if (!status.ok()) return status;
  mesh->watchdog_ = std::thread([raw = mesh.get()] { raw->Watch(); });
  mesh->listener_ = std::thread([raw = mesh.get()] { raw->Listen(); });
  return mesh;
}

absl::Status GlooMesh::OpenDevice(const GlooOptions& options) {
  gloo::transport::tcp::attr attr;
  const bool by_interface = !options.interface.empty();
  // Gloo would find out too, and leak the list that it looked through.
  if (by_interface && if_nametoindex(options.interface.c_str()) == 0) {
    return absl::UnavailableError(
        absl::StrCat("rank ", rank_, ": there is no network interface ", options.interface));
  }
  if (by_interface) {
    attr.iface = options.interface;
  } else {
    attr.hostname = options.bind_host;
  }
  try {
    device_ = gloo::transport::tcp::CreateDevice(attr);
    context_ = device_->createContext(rank_, size_);
    // A pair waits five times its timeout for the connection to come up.
    context_->setTimeout(
        std::max(absl::ToChronoMilliseconds(timeout_ / 5), std::chrono::milliseconds(1)));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) context_->createPair(peer);
    }
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", rank_, ": cannot listen on ", by_interface ? "interface " : "",
        by_interface ? options.interface : options.bind_host, ": ", WithoutSourceLines(e.what())));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> GlooMesh::OwnBlob(const GlooOptions& options) {
  RendezvousBlob blob;
  blob.rank = rank_;
  blob.size = size_;
  blob.bucket_bytes = options.bucket_bytes;
  blob.ports.resize(size_);
  try {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      absl::StatusOr<uint16_t> port = ReadAddress(context_->getPair(peer)->address().bytes(), blob);
      if (!port.ok()) return port.status();
      blob.ports[peer] = *port;
    }
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat(
        "rank ", rank_, ": cannot read its own address: ", WithoutSourceLines(e.what())));
  }
  return EncodeRendezvousBlob(blob);
}

absl::Status GlooMesh::ConnectPeers(const std::vector<std::string>& blobs,
                                    const GlooOptions& options) {
  std::vector<RendezvousBlob> parsed;
  for (int peer = 0; peer < size_; ++peer) {
    absl::StatusOr<RendezvousBlob> blob =
        ParseRendezvousBlob(blobs[peer], peer, size_, options.bucket_bytes);
    if (!blob.ok()) return blob.status();
    parsed.push_back(*std::move(blob));
  }
  // All ranks go through their peers in ascending order: so the smallest pair that is still
  // unconnected always has both its ends at work on it.
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    try {
      context_->getPair(peer)->connect(GlooAddress(parsed[peer], parsed[peer].ports[rank_]));
    } catch (const std::exception& e) {
      lost_rank_ = peer;
      lost_reason_ = absl::StrCat("no connection: ", WithoutSourceLines(e.what()));
      return absl::UnavailableError(
          absl::StrCat("rank ", rank_, ": connecting: lost rank ", peer, ": ", lost_reason_));
    }
  }
  return absl::OkStatus();
}

absl::Status GlooMesh::AwaitFarewells() {
  farewells_.resize(size_);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    auto farewell = std::make_unique<Farewell>();
    try {
      farewell->buffer =
          context_->createUnboundBuffer(&farewell->message, sizeof(Farewell::Message));
      farewell->buffer->recv(peer, kFarewellSlot);
    } catch (const std::exception& e) {
      return PeerError(peer, WithoutSourceLines(e.what()));
    }
    farewells_[peer] = std::move(farewell);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Transfer>> GlooMesh::Send(int peer, uint64_t slot, const void* data,
                                                         size_t bytes) {
  // Gloo has one buffer type for both directions; a send only reads.
  return Start(peer, slot, const_cast<void*>(data), bytes, /*is_send=*/true);
}

absl::StatusOr<std::unique_ptr<Transfer>> GlooMesh::Receive(int peer, uint64_t slot, void* data,
                                                            size_t bytes) {
  return Start(peer, slot, data, bytes, /*is_send=*/false);
}

absl::StatusOr<std::unique_ptr<Transfer>> GlooMesh::Start(int peer, uint64_t slot, void* data,
                                                          size_t bytes, bool is_send) {
  if (aborted()) return Cancelled();
  if (closed_) return absl::UnavailableError(absl::StrCat("rank ", rank_, " has closed"));
  std::unique_ptr<Transfer> transfer(new Transfer(this, peer, is_send));
  try {
    transfer->buffer_ = context_->createUnboundBuffer(data, bytes);
    if (is_send) {
      transfer->buffer_->send(peer, slot);
    } else {
      transfer->buffer_->recv(peer, slot);
    }
  } catch (const std::exception& e) {
    return PeerError(peer, WithoutSourceLines(e.what()));
  }
  absl::MutexLock lock(&mutex_);
  if (aborted_) return Cancelled();
  pending_.insert(transfer.get());
  return transfer;
}

absl::Status GlooMesh::Wait(Transfer& transfer) {
  {
    absl::MutexLock lock(&mutex_);
    awaited_ = &transfer;
    waits_since_ = absl::Now();
    deadline_ = waits_since_ + timeout_;
    timed_out_ = false;
  }
  bool done = false;
  std::string error;
  try {
    done = transfer.is_send_ ? transfer.buffer_->waitSend(kNoGlooTimeout)
                             : transfer.buffer_->waitRecv(kNoGlooTimeout);
  } catch (const std::exception& e) {
    error = WithoutSourceLines(e.what());
  }
  {
    absl::MutexLock lock(&mutex_);
    awaited_ = nullptr;
    StopListening();
    if (done) return absl::OkStatus();
    if (aborted_) return Cancelled();
    if (timed_out_) {
      lost_rank_ = transfer.peer_;
      lost_reason_ = absl::StrCat("no progress within ", absl::FormatDuration(timeout_));
      return absl::UnavailableError(absl::StrCat("lost rank ", lost_rank_, ": ", lost_reason_));
    }
  }
  return PeerError(transfer.peer_, error);
}

void GlooMesh::Watch() {
  absl::MutexLock lock(&mutex_);
  while (!stop_watching_) {
    const absl::Time now = absl::Now();
    if (awaited_ != nullptr && now >= deadline_) {
      timed_out_ = true;
      EndWait();
    }
    // A wait that begins during this sleep has a deadline after its end: nobody need wake us.
    stopped_.WaitWithDeadline(&mutex_, awaited_ != nullptr ? deadline_ : now + timeout_);
  }
}

void GlooMesh::EndWait() {
  if (awaited_->is_send_) {
    awaited_->buffer_->abortWaitSend();
  } else {
    awaited_->buffer_->abortWaitRecv();
  }
  awaited_ = nullptr;
}

void GlooMesh::StopListening() {
  if (listens_to_ >= 0) farewells_[listens_to_]->buffer->abortWaitRecv();
}

void GlooMesh::Listen() {
  absl::MutexLock lock(&mutex_);
  while (!stop_watching_) {
    const absl::Time now = absl::Now();
    if (awaited_ == nullptr || now < waits_since_ + kPatience) {
      stopped_.WaitWithDeadline(&mutex_, (awaited_ != nullptr ? waits_since_ : now) + kPatience);
      continue;
    }
    const int peer = awaited_->peer_;
    Farewell* const farewell = farewells_[peer].get();
    if (farewell != nullptr && farewell->heard == Farewell::Heard::kNothing) {
      listens_to_ = peer;
      mutex_.Unlock();
      Farewell::Heard heard = Farewell::Heard::kNothing;
      std::string error;
      try {
        // False: whoever called StopListening() no longer wants to know.
        if (farewell->buffer->waitRecv(kNoGlooTimeout)) heard = Farewell::Heard::kMessage;
      } catch (const std::exception& e) {
        heard = Farewell::Heard::kEnd;
        error = WithoutSourceLines(e.what());
      }
      mutex_.Lock();
      farewell->heard = heard;
      farewell->error = std::move(error);
      farewell->heard_at = absl::Now();
      listens_to_ = -1;
      if (heard == Farewell::Heard::kNothing) continue;
    }
    const bool leaves = farewell != nullptr && farewell->heard == Farewell::Heard::kMessage &&
                        farewell->message.lost_rank == peer;
    if (leaves && absl::Now() < farewell->heard_at + kLeavingGrace) {
      stopped_.WaitWithDeadline(&mutex_, absl::Now() + kPatience);
      continue;
    }
    // What is under way from or to this peer will never be through.
    if (awaited_ != nullptr && awaited_->peer_ == peer) EndWait();
  }
}

absl::Status GlooMesh::PeerError(int peer, const std::string& what) {
  {
    absl::MutexLock lock(&mutex_);
    StopListening();
    const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return listens_to_ < 0; };
    mutex_.Await(absl::Condition(&idle));
  }
  lost_rank_ = peer;
  lost_reason_ = what;
  // A peer that gave up because of another rank said so before it closed.
  if (farewells_.empty() || farewells_[peer] == nullptr) {
    return absl::UnavailableError(absl::StrCat("lost rank ", peer, ": ", what));
  }
  bool said = farewells_[peer]->heard == Farewell::Heard::kMessage;
  if (farewells_[peer]->heard == Farewell::Heard::kNothing) {
    try {
      said = farewells_[peer]->buffer->waitRecv(std::chrono::milliseconds(0));
    } catch (const std::exception&) {
      said = false;  // it went without a word
    }
  } else if (what.empty()) {
    lost_reason_ = farewells_[peer]->error;
  }
  const Farewell::Message message = farewells_[peer]->message;
  farewells_[peer].reset();
  if (!said) return absl::UnavailableError(absl::StrCat("lost rank ", peer, ": ", lost_reason_));

  lost_reason_.assign(message.reason, strnlen(message.reason, sizeof(message.reason)));
  if (message.lost_rank == rank_) {
    return absl::UnavailableError(
        absl::StrCat("rank ", peer, " gave this rank up: ", lost_reason_));
  }
  if (message.lost_rank < 0 || message.lost_rank >= size_ || message.lost_rank == peer) {
    return absl::UnavailableError(absl::StrCat("lost rank ", peer, ": ", lost_reason_));
  }
  lost_rank_ = message.lost_rank;
  return absl::UnavailableError(
      absl::StrCat("lost rank ", lost_rank_, ": ", lost_reason_, " (reported by rank ", peer, ")"));
}

absl::Status GlooMesh::Cancelled() const { return absl::CancelledError("aborted by this rank"); }

bool GlooMesh::aborted() const {
  absl::MutexLock lock(&mutex_);
  return aborted_;
}

void GlooMesh::Close(const std::string& own_reason) {
  if (closed_ || context_ == nullptr) return;
  closed_ = true;
  const std::string& reason = lost_rank_ < 0 ? own_reason : lost_reason_;
  farewells_sent_.resize(size_);
  for (int peer = 0; peer < size_; ++peer) {
    // No word to a peer that is gone, or that was never connected.
    if (peer == rank_ || farewells_.empty() || farewells_[peer] == nullptr) continue;
    auto farewell = std::make_unique<Farewell>();
    farewell->message.lost_rank = lost_rank_ < 0 ? rank_ : lost_rank_;
    reason.copy(farewell->message.reason, sizeof(farewell->message.reason) - 1);
    try {
      farewell->buffer =
          context_->createUnboundBuffer(&farewell->message, sizeof(Farewell::Message));
      // The peer's receive has been posted since it connected, and closing softly delivers the
      // bytes ahead of the end of the stream.
      farewell->buffer->send(peer, kFarewellSlot);
    } catch (const std::exception&) {
      continue;  // the peer is gone already
    }
    farewells_sent_[peer] = std::move(farewell);
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (farewells_sent_[peer] == nullptr || peer == lost_rank_) continue;
    try {
      farewells_sent_[peer]->buffer->waitSend(kFarewellTimeout);
    } catch (const std::exception&) {
      continue;  // after one timeout Gloo has closed all pairs, and the others end at once
    }
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) context_->getPair(peer).reset();
  }
}

void GlooMesh::Abort() {
  absl::MutexLock lock(&mutex_);
  aborted_ = true;
  for (Transfer* transfer : pending_) {
    if (transfer->is_send_) {
      transfer->buffer_->abortWaitSend();
    } else {
      transfer->buffer_->abortWaitRecv();
    }
  }
}

}  // namespace sparsebalance::comm_internal
