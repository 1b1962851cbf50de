#include "islands/tls.h"

#include <openssl/crypto.h>
#include <openssl/err.h>

#include <cerrno>
#include <cstring>

#include "gradweave/error.h"

namespace gradweave::islands {
namespace {

constexpr unsigned char kIdentity[] = "gradweave";
constexpr std::size_t kIdentityBytes = sizeof kIdentity - 1;
constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};
constexpr std::size_t kReadAhead =
    128 * 1024;  // eight records in one read of the socket; given back when idle

// The session that both sides would have if they had met before: it is how TLS 1.3 takes a key from outside.
SSL_SESSION* session_of(SSL* ssl) {
  const auto* context = static_cast<const TlsContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kAes128GcmSha256);
  SSL_SESSION* session = SSL_SESSION_new();
  if (session == nullptr || cipher == nullptr ||
      SSL_SESSION_set1_master_key(session, context->key().data(), context->key().size()) != 1 ||
      SSL_SESSION_set_cipher(session, cipher) != 1 ||
      SSL_SESSION_set1_id_context(session, kIdentity, kIdentityBytes) != 1 ||
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
    SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

int use_key(SSL* ssl, const EVP_MD* /*digest*/, const unsigned char** id, std::size_t* length,
            SSL_SESSION** session) {
  *session = session_of(ssl);
  *id = kIdentity;
  *length = kIdentityBytes;
  return *session != nullptr ? 1 : 0;
}

int find_key(SSL* ssl, const unsigned char* id, std::size_t length, SSL_SESSION** session) {
  *session = nullptr;
  if (length == kIdentityBytes && CRYPTO_memcmp(id, kIdentity, length) == 0) *session = session_of(ssl);
  return 1;
}

}  // namespace

TlsContext::TlsContext(const Key& key) : key_(key), context_(SSL_CTX_new(TLS_method())) {
  SSL_CTX* context = context_.get();
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1)
    throw RuntimeFailure("OpenSSL offers no TLS 1.3 here; install OpenSSL 3");
  // A side that shows a certificate instead of the key is refused: no authority is trusted.
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_psk_use_session_callback(context, use_key);
  SSL_CTX_set_psk_find_session_callback(context, find_key);
  SSL_CTX_set_session_id_context(context, kIdentity, kIdentityBytes);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context,
                      SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kReadAhead);
  SSL_CTX_set_app_data(context, this);
}

TlsContext::~TlsContext() { OPENSSL_cleanse(key_.data(), key_.size()); }

TlsStream::TlsStream(const TlsContext& context, int socket, bool connects) : ssl_(SSL_new(context.get())) {
  if (!ssl_ || SSL_set_fd(ssl_.get(), socket) != 1)
    throw RuntimeFailure("OpenSSL has no memory for a connection");
  if (connects) {
    SSL_set_connect_state(ssl_.get());
  } else {
    SSL_set_accept_state(ssl_.get());
  }
}

TlsStream::Status TlsStream::status_of(int result, const char* during) {
  const int saved = errno;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Status::kWantsRead;
    case SSL_ERROR_WANT_WRITE:
      return Status::kWantsWrite;
    case SSL_ERROR_ZERO_RETURN:
      why_ = "closed by the other side";
      return Status::kClosed;
    case SSL_ERROR_SYSCALL:
      why_ = saved == 0 ? "closed by the other side" : std::strerror(saved);  // NOLINT(concurrency-mt-unsafe)
      return Status::kClosed;
    default: {
      const char* reason = ERR_reason_error_string(ERR_peek_error());
      why_ = std::string(during) + (reason != nullptr ? std::string(": ") + reason : "");
      return Status::kClosed;
    }
  }
}

TlsStream::Status TlsStream::handshake() {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(ssl_.get());
  if (result != 1)
    return status_of(result, "the handshake failed: the other side has another key, or speaks no TLS");
  if (SSL_session_reused(ssl_.get()) == 1) return Status::kDone;
  why_ = "the handshake failed: it did not use the job's key";
  return Status::kClosed;
}

TlsStream::Status TlsStream::read(std::span<std::byte> bytes, std::size_t& count) {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_read_ex(ssl_.get(), bytes.data(), bytes.size(), &count);
  return result == 1 ? Status::kDone : status_of(result, "bytes that are not of this connection");
}

TlsStream::Status TlsStream::write(std::span<const std::byte> bytes, std::size_t& count) {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &count);
  return result == 1 ? Status::kDone : status_of(result, "could not be written");
}

void TlsStream::end() {
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
}

}  // namespace gradweave::islands
