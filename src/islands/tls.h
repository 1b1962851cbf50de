// TLS 1.3 by the job's key alone, over a socket that never blocks.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "islands/key.h"

namespace gradweave::islands {

struct TlsDeleter {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

// What all connections of an endpoint share. Errors: RuntimeFailure if OpenSSL has no TLS 1.3.
class TlsContext {
 public:
  explicit TlsContext(const Key& key);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  SSL_CTX* get() const { return context_.get(); }
  const Key& key() const { return key_; }

 private:
  Key key_;
  std::unique_ptr<SSL_CTX, TlsDeleter> context_;
};

// One connection. Both sides have shown that they have the key once handshake() is done; before that, no byte is read or
// written for anybody.
class TlsStream {
 public:
  enum class Status { kDone, kWantsRead, kWantsWrite, kClosed };

  // `context` and the socket outlive it. `connects`: whether this side made the connection.
  TlsStream(const TlsContext& context, int socket, bool connects);

  Status handshake();
  // Each sets `count` to the bytes of kDone: at least one. A write that was not done is called again with the same bytes.
  Status read(std::span<std::byte> bytes, std::size_t& count);
  Status write(std::span<const std::byte> bytes, std::size_t& count);
  // Tells the other side that nothing follows.
  void end();
  // Why it is kClosed.
  const std::string& why() const { return why_; }

 private:
  Status status_of(int result, const char* during);

  std::unique_ptr<SSL, TlsDeleter> ssl_;
  std::string why_;
};

}  // namespace gradweave::islands
