#include "cli/node_flags.h"

#include "cli/flag_values.h"
#include "step1_layers/core/error.h"
#include "step7_parallel/hosts/host_world.h"

namespace ladder {

void NodeFlags::add(CLI::App& app) {
  const char* group = "Ranks on several hosts (each runs the same command, but for --node-rank)";
  app.add_option("--nnodes", num_nodes_, "hosts that share the ranks of one engine")
      ->check(whole_in_range(1, 1024))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--node-rank", node_, "which of them this is; node 0 has the engine")
      ->check(whole_in_range(0, 1023))
      ->type_name("R")
      ->capture_default_str()
      ->group(group);
  app.add_option("--master-addr", master_host_, "node 0, as all nodes reach it")
      ->type_name("HOST")
      ->capture_default_str()
      ->group(group);
  app.add_option("--master-port", master_port_, "where node 0 listens for the others")
      ->check(whole_in_range(1, 65535))
      ->type_name("PORT")
      ->capture_default_str()
      ->group(group);
  app.add_option("--secret-file", secret_file_,
                 "a file with the secret that all hosts share [the variable LADDER_SECRET]; needed where "
                 "--master-addr or --data-parallel-address is not this machine alone")
      ->type_name("FILE")
      ->group(group);
  app.add_option(
         "--node-arrival-timeout", arrival_,
         "seconds until all nodes must have come, or one that has lost --data-parallel-address is back")
      ->check(above_zero(86400))
      ->type_name("S")
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--node-timeout", silence_,
         "seconds for which a rank may be silent; then all ranks of the engine end, or a node's replicas are lost")
      ->check(above_zero(86400))
      ->type_name("S")
      ->capture_default_str()
      ->group(group);
}

HostPlace NodeFlags::place(int num_ranks) const {
  LADDER_CHECK(num_ranks % num_nodes_ == 0,
               "--nnodes {}: expected to divide the number of ranks, which is --tensor-parallel-size times "
               "--pipeline-parallel-size, {}",
               num_nodes_, num_ranks);
  LADDER_CHECK(node_ < num_nodes_, "--node-rank {}: expected less than --nnodes, which is {}", node_,
               num_nodes_);
  HostPlace place{.num_nodes = num_nodes_,
                  .node = node_,
                  .ranks_per_node = num_ranks / num_nodes_,
                  .local_rank = 0,
                  .master = {master_host_, master_port_},
                  .secret = read_host_secret(secret_file_),
                  .arguments = {},
                  .arrival = arrival(),
                  .silence = silence()};
  expect_secret_for(master_host_, place.secret, "--master-addr");
  return place;
}

}  // namespace ladder
