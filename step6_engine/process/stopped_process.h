#pragma once

namespace ladder {

// By SIGSTOP: it exists and does nothing until somebody sends it SIGCONT. A process that is not there is not stopped.
bool is_stopped_process(int pid);

}  // namespace ladder
