#pragma once
// Bytes of one connection, as they are or through TLS. Included by the server's own .cpp files alone: Asio's headers are
// slow to compile.
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>
#include <string_view>

namespace boost::asio::ssl {
class context;
}

namespace ladder {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

// Calls come on the connection's thread, never from within a call of Transport.
class TransportEvents {
 public:
  virtual ~TransportEvents() = default;
  virtual void on_open(ErrorCode code) = 0;                          // of open()
  virtual void on_read(ErrorCode code, std::string_view bytes) = 0;  // valid during the call
  virtual void on_written(ErrorCode code, size_t num_bytes) = 0;
};

// What is begun keeps the owner alive until its event has come.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual void open(std::shared_ptr<TransportEvents> owner) = 0;
  virtual void read(std::shared_ptr<TransportEvents> owner) = 0;  // one at a time
  // Some of the bytes, which must stay where they are; one at a time.
  virtual void write(std::shared_ptr<TransportEvents> owner, std::string_view bytes) = 0;
  // Says that nothing more comes; what was written still arrives. No write may be under way.
  virtual void shut(std::shared_ptr<TransportEvents> owner) = 0;
  virtual void close() = 0;  // at once: what is under way ends with an error
};

// Read by all connections of a thread, so that an idle one has no buffer of its own.
using ReadBuffer = std::array<char, 64 * 1024>;

std::unique_ptr<Transport> make_plain_transport(asio::ip::tcp::socket socket, ReadBuffer& buffer);
std::unique_ptr<Transport> make_tls_transport(asio::ip::tcp::socket socket, asio::ssl::context& context);
// Error, naming the flags: a file is missing or malformed.
std::shared_ptr<asio::ssl::context> make_tls_context(const std::string& certfile, const std::string& keyfile);

}  // namespace ladder
