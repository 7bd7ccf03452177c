#pragma once
// Who may connect: whoever knows the secret that all hosts share. It is never sent; each side proves that it knows it, by
// a keyed hash (HMAC-SHA256, RFC 2104) of numbers that both have just drawn, so that no proof is worth anything twice.
//
// What this is not: encryption. Whoever can read or change what is under way between two hosts can read the prompts, and
// take a connection over once it stands. Between machines whose network others share it needs a tunnel (WireGuard, IPsec).
#include <array>
#include <filesystem>
#include <string>

namespace ladder {

inline constexpr const char* kSecretVariable = "LADDER_SECRET";

struct HostSecret {
  std::string bytes;  // empty: none, which is enough on one machine alone
};

// The file's content without a line's end behind it; no file: that of the variable, which may be missing. Error: the file
// cannot be read, is empty or larger than a page.
HostSecret read_host_secret(const std::filesystem::path& file);
// Error, naming `flag` and the ways to give a secret: there is none, and `host` is not this machine alone.
void expect_secret_for(const std::string& host, const HostSecret& secret, const std::string& flag);

using Nonce = std::array<unsigned char, 32>;  // a number that is used once
using Proof = std::array<unsigned char, 32>;
enum class HostRole : unsigned char { listener, connector };

Nonce draw_nonce();
// What a connection is for, in its connector's words: whoever accepts it may ask for some, and nobody who does not know the
// secret can say or change it. Zeros: nothing in particular.
using ConnectionNote = std::array<unsigned char, 32>;
// What `role` sends to prove that it knows the secret. The role is in it: nobody is answered with his own proof.
Proof prove(const HostSecret& secret, HostRole role, const Nonce& listener, const Nonce& connector,
            const ConnectionNote& note);
// In a time that does not tell how much of it is right.
bool same(const Proof& a, const Proof& b);

}  // namespace ladder
