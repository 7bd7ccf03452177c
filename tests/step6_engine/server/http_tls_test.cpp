// The same over TLS, with a certificate made on the spot.
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <filesystem>

#include "step1_layers/core/error.h"
#include "tests/step6_engine/server/http_routes.h"

namespace ladder::testing {
namespace {

template <class T, void (*Free)(T*)>
struct Freed {
  void operator()(T* pointer) const { Free(pointer); }
};
template <class T, void (*Free)(T*)>
using Owned = std::unique_ptr<T, Freed<T, Free>>;

// A certificate of its own, and its key, in a folder that is removed.
class Certificate {
 public:
  Certificate() {
    std::string name = (std::filesystem::temp_directory_path() / "ladder_tls_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    const Owned<EVP_PKEY, EVP_PKEY_free> key(EVP_EC_gen("P-256"));
    const Owned<X509, X509_free> certificate(X509_new());
    ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -60);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
    X509_set_pubkey(certificate.get(), key.get());
    X509_sign(certificate.get(), key.get(), EVP_sha256());
    FILE* file = fopen(cert_file().c_str(), "w");
    PEM_write_X509(file, certificate.get());
    fclose(file);
    file = fopen(key_file().c_str(), "w");
    PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    fclose(file);
  }
  ~Certificate() { std::filesystem::remove_all(folder_); }
  std::string cert_file() const { return (folder_ / "cert.pem").string(); }
  std::string key_file() const { return (folder_ / "key.pem").string(); }

 private:
  std::filesystem::path folder_;
};

class TlsClient {
 public:
  explicit TlsClient(uint16_t port)
      : socket_(port), context_(SSL_CTX_new(TLS_client_method())), ssl_(SSL_new(context_.get())) {
    const timeval patience{.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(kPatience).count(),
                           .tv_usec = 0};
    setsockopt(socket_.descriptor(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    SSL_set_fd(ssl_.get(), socket_.descriptor());
    connected_ = SSL_connect(ssl_.get()) == 1;
  }
  bool connected() const { return connected_; }
  void send(std::string_view bytes) { SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())); }
  // Until the text has come, the connection ends, or nothing comes for kPatience.
  const std::string& receive_until(std::string_view text) {
    char buffer[4096];
    while (got_.find(text) == got_.npos) {
      const int size = SSL_read(ssl_.get(), buffer, sizeof buffer);
      if (size <= 0) break;
      got_.append(buffer, static_cast<size_t>(size));
    }
    return got_;
  }
  std::string& got() { return got_; }

 private:
  RawClient socket_;
  Owned<SSL_CTX, SSL_CTX_free> context_;
  Owned<SSL, SSL_free> ssl_;
  bool connected_ = false;
  std::string got_;
};

HttpServerOptions tls_options(const Certificate& certificate) {
  HttpServerOptions options = test_options();
  options.ssl_certfile = certificate.cert_file();
  options.ssl_keyfile = certificate.key_file();
  return options;
}

TEST(Task6_6_Tls, AnswersStreamsAndCloses) {
  const Certificate certificate;
  TestServer test(tls_options(certificate));
  EXPECT_TRUE(test.server->address().starts_with("https://127.0.0.1:"));
  TlsClient client(test.server->port());
  ASSERT_TRUE(client.connected());
  client.send(get("/plain"));
  EXPECT_TRUE(client.receive_until("plain").ends_with("plain"));
  client.got().clear();
  const std::string body(200'000, 'x');
  client.send(post("/echo_worker", body + "!"));
  EXPECT_TRUE(client.receive_until("x!").ends_with(body + "!"));
  client.got().clear();
  client.send(get("/stream"));
  client.receive_until("\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return test.stream->num_held == 1; }));
  test.stream->push("one");
  client.receive_until("3\r\none\r\n");
  test.stream->push("two", true);
  EXPECT_TRUE(client.receive_until("0\r\n\r\n").ends_with("3\r\ntwo\r\n0\r\n\r\n"));
}

TEST(Task6_6_Tls, AClientThatGoesAwayIsNoticed) {
  const Certificate certificate;
  TestServer test(tls_options(certificate));
  {
    TlsClient client(test.server->port());
    client.send(get("/stream"));
    client.receive_until("\r\n\r\n");
    ASSERT_TRUE(eventually([&] { return test.stream->num_held == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return test.stream->num_destroyed == 1; }));
  EXPECT_TRUE(eventually([&] { return test.server->num_connections() == 0; }));
}

TEST(Task6_6_Tls, WhoSpeaksNoTlsOrNothingIsLeft) {
  const Certificate certificate;
  HttpServerOptions options = tls_options(certificate);
  options.header_timeout = 3s;  // the handshake is within it
  TestServer test(options);
  RawClient plain = test.connect(), silent = test.connect(), half = test.connect();
  plain.send(get("/plain"));
  EXPECT_EQ(plain.rest().find("plain"), std::string::npos);
  half.send("\x16\x03\x01\x02");
  half.rest();
  silent.rest();
  EXPECT_TRUE(eventually([&] { return test.server->num_connections() == 0; }));
  TlsClient client(test.server->port());
  client.send(get("/plain"));
  EXPECT_TRUE(client.receive_until("plain").ends_with("plain"));
}

TEST(Task6_6_Tls, AKeyOfAnotherCertificateIsAnError) {
  const Certificate one, other;
  HttpServerOptions options = tls_options(one);
  options.ssl_keyfile = other.key_file();
  EXPECT_THROW(TestServer test(options), Error);
  options.ssl_keyfile = one.cert_file();
  EXPECT_THROW(TestServer test(options), Error);
}

}  // namespace
}  // namespace ladder::testing
