#include <boost/asio/ssl.hpp>
#include <filesystem>

#include "step1_layers/core/error.h"
#include "step6_engine/server/http/transport.h"

namespace ladder {

namespace {

using Owner = std::shared_ptr<TransportEvents>;

class TlsTransport final : public Transport {
 public:
  TlsTransport(asio::ip::tcp::socket socket, asio::ssl::context& context)
      : stream_(std::move(socket), context) {}

  void open(Owner owner) override {
    stream_.async_handshake(asio::ssl::stream_base::server,
                            [owner = std::move(owner)](ErrorCode code) { owner->on_open(code); });
  }

  void read(Owner owner) override {
    stream_.async_read_some(asio::buffer(buffer_),
                            [this, owner = std::move(owner)](ErrorCode code, size_t size) {
                              owner->on_read(code, {buffer_.data(), size});
                            });
  }

  void write(Owner owner, std::string_view bytes) override {
    stream_.async_write_some(
        asio::buffer(bytes.data(), bytes.size()),
        [owner = std::move(owner)](ErrorCode code, size_t size) { owner->on_written(code, size); });
  }

  // TLS' own farewell; the client's is not waited for.
  void shut(Owner owner) override {
    stream_.async_shutdown([owner = std::move(owner)](ErrorCode) {});
  }

  void close() override {
    ErrorCode ignored;
    stream_.next_layer().close(ignored);
  }

 private:
  asio::ssl::stream<asio::ip::tcp::socket> stream_;
  std::array<char, 4096> buffer_;
};

void check(ErrorCode code, const char* flag, const std::string& file) {
  LADDER_CHECK(!code, "{} {}: {}", flag, file, code.message());
}

}  // namespace

std::unique_ptr<Transport> make_tls_transport(asio::ip::tcp::socket socket, asio::ssl::context& context) {
  return std::make_unique<TlsTransport>(std::move(socket), context);
}

std::shared_ptr<asio::ssl::context> make_tls_context(const std::string& certfile,
                                                     const std::string& keyfile) {
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  context->set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1 |
                       asio::ssl::context::no_compression);
  SSL_CTX_set_options(context->native_handle(), SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(context->native_handle(), SSL_MODE_RELEASE_BUFFERS);
  ErrorCode code;
  context->use_certificate_chain_file(certfile, code);
  check(code, "--ssl-certfile", certfile);
  context->use_private_key_file(keyfile, asio::ssl::context::pem, code);
  check(code, "--ssl-keyfile", keyfile);
  LADDER_CHECK(SSL_CTX_check_private_key(context->native_handle()) == 1,
               "--ssl-keyfile {}: it is not the key of --ssl-certfile {}", keyfile, certfile);
  return context;
}

}  // namespace ladder
