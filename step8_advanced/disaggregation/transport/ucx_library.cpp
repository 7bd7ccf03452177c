#ifdef LADDER_HAS_UCX
#include "step8_advanced/disaggregation/transport/ucx_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <type_traits>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

// What the library reads while it is being loaded. A user's own value stays.
void set_defaults() {
  ::setenv("UCX_LOG_LEVEL", "fatal", 0);
  ::setenv("UCX_LOG_FILE", "stderr", 0);     // not stdout, which is the program's
  ::setenv("UCX_HANDLE_ERRORS", "none", 0);  // signal handlers are the program's
  ::setenv("UCX_MEM_MMAP_HOOK_MODE", "none",
           0);  // nor is mmap patched: no memory is registered that outlives a call
}

void* open(const char* name) {
  void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  LADDER_CHECK(library != nullptr, "there is no UCX: expected the package libucx0 to be installed ({})",
               ::dlerror());
  return library;
}

template <class Function>
void look_up(void* library, Function& function, const char* name) {
  void* const address = ::dlsym(library, name);
  LADDER_CHECK(address != nullptr, "the UCX that was found has no {}: expected version 1.13 or newer", name);
  function = reinterpret_cast<std::remove_reference_t<Function>>(address);
}

UcxLibrary load() {
  set_defaults();
  void* const library = open("libucp.so.0");
  UcxLibrary found{};
  look_up(library, found.config_read, "ucp_config_read");
  look_up(library, found.config_modify, "ucp_config_modify");
  look_up(library, found.config_release, "ucp_config_release");
  look_up(library, found.init_version, "ucp_init_version");
  look_up(library, found.cleanup, "ucp_cleanup");
  look_up(library, found.worker_create, "ucp_worker_create");
  look_up(library, found.worker_destroy, "ucp_worker_destroy");
  look_up(library, found.worker_get_address, "ucp_worker_get_address");
  look_up(library, found.worker_release_address, "ucp_worker_release_address");
  look_up(library, found.worker_get_efd, "ucp_worker_get_efd");
  look_up(library, found.worker_arm, "ucp_worker_arm");
  look_up(library, found.worker_progress, "ucp_worker_progress");
  look_up(library, found.worker_set_am_recv_handler, "ucp_worker_set_am_recv_handler");
  look_up(library, found.ep_create, "ucp_ep_create");
  look_up(library, found.am_send, "ucp_am_send_nbx");
  look_up(library, found.request_check_status, "ucp_request_check_status");
  look_up(library, found.request_free, "ucp_request_free");
  return found;
}

}  // namespace

const UcxLibrary& ucx_library() {
  static const UcxLibrary library = load();
  return library;
}

const char* ucx_text(ucs_status_t status) {
  static const auto text = [] {
    decltype(&::ucs_status_string) function = nullptr;
    look_up(open("libucs.so.0"), function, "ucs_status_string");
    return function;
  }();
  return text(status);
}

}  // namespace ladder
#endif
