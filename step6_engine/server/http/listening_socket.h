#pragma once
// The socket that clients connect to: opened by the server that takes the connections, or by a parent whose servers take
// them from one socket (remote/api_servers.h).
#include <cstdint>
#include <string>

#include "step6_engine/process/file_descriptor.h"

namespace ladder {

struct HttpServerOptions;

// By the options' host, port and send buffer. Error: the host has no address, somebody listens at the port. Nobody is taken in
// yet, so that this is known before a model is loaded and who asks meanwhile is refused; a server that has the socket listens.
FileDescriptor open_bound_socket(const HttpServerOptions& options);
// Once it may be connected to. Error: another one has begun to listen there meanwhile, which a bound socket does not prevent.
void begin_to_listen(int bound_socket);
// Both.
FileDescriptor open_listening_socket(const HttpServerOptions& options);

// Which port it is, where any would do.
uint16_t port_of(int listening_socket);

// As a URL has it: an address of IPv6 in brackets.
std::string url_host(const std::string& host);

// "http://127.0.0.1:8000/llm".
std::string http_address(const HttpServerOptions& options, uint16_t port);

}  // namespace ladder
