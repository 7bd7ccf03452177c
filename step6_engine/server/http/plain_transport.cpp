#include "step6_engine/server/http/transport.h"

namespace ladder {

namespace {

using Owner = std::shared_ptr<TransportEvents>;

class PlainTransport final : public Transport {
 public:
  PlainTransport(asio::ip::tcp::socket socket, ReadBuffer& buffer)
      : socket_(std::move(socket)), buffer_(buffer) {
    ErrorCode ignored;
    socket_.non_blocking(true, ignored);
  }

  void open(Owner owner) override {
    asio::post(socket_.get_executor(), [owner = std::move(owner)] { owner->on_open({}); });
  }

  // Waits until there is something, and only then takes the thread's buffer.
  void read(Owner owner) override {
    socket_.async_wait(asio::ip::tcp::socket::wait_read, [this, owner = std::move(owner)](ErrorCode code) {
      size_t size = 0;
      if (!code) size = socket_.read_some(asio::buffer(buffer_), code);
      if (code == asio::error::would_block || code == asio::error::try_again) return read(owner);
      owner->on_read(code, {buffer_.data(), size});
    });
  }

  void write(Owner owner, std::string_view bytes) override {
    socket_.async_write_some(
        asio::buffer(bytes.data(), bytes.size()),
        [owner = std::move(owner)](ErrorCode code, size_t size) { owner->on_written(code, size); });
  }

  void shut(Owner) override {
    ErrorCode ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  }

  void close() override {
    ErrorCode ignored;
    socket_.close(ignored);
  }

 private:
  asio::ip::tcp::socket socket_;
  ReadBuffer& buffer_;
};

}  // namespace

std::unique_ptr<Transport> make_plain_transport(asio::ip::tcp::socket socket, ReadBuffer& buffer) {
  return std::make_unique<PlainTransport>(std::move(socket), buffer);
}

}  // namespace ladder
