#pragma once
// The functions of UCX (https://openucx.org, 1.13 and newer), which is looked up when it is first wanted: a program that is built
// with its headers starts where it is not installed. Internal to this folder; there where the build has UCX (LADDER_HAS_UCX).
#include <ucp/api/ucp.h>

namespace ladder {

struct UcxLibrary {
  decltype(&::ucp_config_read) config_read;
  decltype(&::ucp_config_modify) config_modify;
  decltype(&::ucp_config_release) config_release;
  decltype(&::ucp_init_version) init_version;
  decltype(&::ucp_cleanup) cleanup;
  decltype(&::ucp_worker_create) worker_create;
  decltype(&::ucp_worker_destroy) worker_destroy;
  decltype(&::ucp_worker_get_address) worker_get_address;
  decltype(&::ucp_worker_release_address) worker_release_address;
  decltype(&::ucp_worker_get_efd) worker_get_efd;
  decltype(&::ucp_worker_arm) worker_arm;
  decltype(&::ucp_worker_progress) worker_progress;
  decltype(&::ucp_worker_set_am_recv_handler) worker_set_am_recv_handler;
  decltype(&::ucp_ep_create) ep_create;
  decltype(&::ucp_am_send_nbx) am_send;
  decltype(&::ucp_request_check_status) request_check_status;
  decltype(&::ucp_request_free) request_free;
};

// Error: it is not where the loader looks. What it has to say does not reach the terminal, unless UCX_LOG_LEVEL asks for it.
const UcxLibrary& ucx_library();
const char* ucx_text(ucs_status_t status);

}  // namespace ladder
