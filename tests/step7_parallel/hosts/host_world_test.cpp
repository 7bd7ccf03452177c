// Ranks on several nodes, here threads: how they meet, what they answer, and what becomes of them on a bad network.
#include "step7_parallel/hosts/host_world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "tests/step7_parallel/engine_on_grid.h"
#include "tests/step7_parallel/hosts/meeting.h"
#include "tests/step7_parallel/hosts/tcp_proxy.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using testing::error_of;
using testing::free_address;
using testing::Grid;
using ::testing::HasSubstr;
using testing::meeting_of;
using testing::place_of;
using testing::TcpProxy;
using Clock = std::chrono::steady_clock;

TEST(Task7_8_Rendezvous, AllLearnWhereTheOthersAreWhoeverComesFirst) {
  const HostAddress master = free_address();
  std::vector<Met> met(6);
  std::vector<std::thread> threads;
  for (const int rank : {5, 2, 1, 0, 4, 3}) {  // the others look for rank 0 until it is there
    threads.emplace_back([&, rank] {
      const HostPlace place = place_of(rank, 3, 2, master);
      met[static_cast<size_t>(rank)] = rank == 0 ? receive_ranks(place) : join_ranks(place);
    });
    std::this_thread::sleep_for(20ms);
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < 6; ++rank) {
    const Met& of_rank = met[static_cast<size_t>(rank)];
    ASSERT_EQ(of_rank.places.size(), 6u) << "rank " << rank;
    for (int other = 0; other < 6; ++other) {
      const TcpPlace& place = of_rank.places[static_cast<size_t>(other)];
      EXPECT_EQ(place.name, fmt::format("rank {} (node {}, 127.0.0.1)", other, other / 2));
      EXPECT_EQ(place.address.port, met[static_cast<size_t>(other)].mesh->address().port)
          << "where rank " << rank << " looks for rank " << other;
    }
    ASSERT_EQ(of_rank.watched.size(), rank == 0 ? 5u : 1u);
  }
  for (int other = 1; other < 6; ++other) {
    const WatchedPeer& peer = met[0].watched[static_cast<size_t>(other - 1)];
    EXPECT_EQ(peer.name, met[0].places[static_cast<size_t>(other)].name);
    EXPECT_EQ(peer.follows, other % 2 == 1) << peer.name;  // two ranks a node
  }
}

TEST(Task7_8_Rendezvous, TheNodesThatAreMissingAreNamedToAllThatHaveCome) {
  const HostAddress master = free_address();
  std::vector<HostPlace> places;
  for (const int rank : {0, 1, 2})
    places.push_back(place_of(rank, 3, 2, master));  // not 3 of node 1, 4 and 5 of node 2
  for (HostPlace& place : places) place.arrival = 2s;
  const auto begin = Clock::now();
  EXPECT_THAT(meeting_of(places), Each(::testing::AllOf(HasSubstr("node 1, node 2"), HasSubstr("3"),
                                                        HasSubstr(master.str()), HasSubstr("within 2 s"))));
  EXPECT_GE(Clock::now() - begin, 1900ms);
  EXPECT_LT(Clock::now() - begin, 20s);
}

TEST(Task7_8_Rendezvous, OneThatWasStartedOtherwiseIsToldToAll) {
  const auto with = [](const std::function<void(HostPlace&)>& change) {
    const HostAddress master = free_address();
    std::vector<HostPlace> places = {place_of(0, 2, 1, master), place_of(1, 2, 1, master)};
    change(places[1]);
    return meeting_of(places);
  };
  EXPECT_THAT(with([](HostPlace& place) { place.num_nodes = 4; }), Each(HasSubstr("--nnodes 4")));
  EXPECT_THAT(with([](HostPlace& place) { place.ranks_per_node = 2; }),
              Each(HasSubstr("node 1 has 2 ranks")));
  EXPECT_THAT(with([](HostPlace& place) { place.arguments = "serve"; }),
              Each(HasSubstr("the arguments of node 1")));
}

// A node's first process speaks for it. It may come when another one of its ranks was refused long ago.
TEST(Task7_8_Rendezvous, EveryRankOfANodeThatIsRefusedHearsWhy) {
  const HostAddress master = free_address();
  std::vector<HostPlace> places;
  for (const int rank : {0, 2, 3}) places.push_back(place_of(rank, 2, 2, master));
  for (size_t i : {1, 2}) places[i].arguments = "serve";
  auto rank_0 = std::async(std::launch::async, [&] { return error_of([&] { receive_ranks(places[0]); }); });
  for (const size_t i : {2, 1})
    EXPECT_THAT(error_of([&] { join_ranks(places[i]); }), HasSubstr("the arguments of node 1"));
  EXPECT_THAT(rank_0.get(), HasSubstr("the arguments of node 1"));
}

TEST(Task7_8_Rendezvous, ASecondOfOneRankAndStrangersAreSentAway) {
  const HostAddress master = free_address();
  std::vector<HostPlace> places;
  for (const int rank : {0, 1, 2}) places.push_back(place_of(rank, 3, 1, master));
  auto rank_0 = std::async(std::launch::async, [&] { return error_of([&] { receive_ranks(places[0]); }); });
  // Of two with rank 1 the second one to come is sent away; the first waits for rank 2.
  std::vector<std::future<std::string>> ranks_1;
  for (int i = 0; i < 2; ++i)
    ranks_1.push_back(
        std::async(std::launch::async, [&] { return error_of([&] { join_ranks(places[1]); }); }));
  const auto is_ready = [](const auto& rank) { return rank.wait_for(1ms) == std::future_status::ready; };
  auto refused = ranks_1.end();
  while (refused == ranks_1.end()) refused = std::find_if(ranks_1.begin(), ranks_1.end(), is_ready);
  EXPECT_THAT(refused->get(), HasSubstr("--node-rank 1"));
  ranks_1.erase(refused);
  HostPlace first = places[1];
  first.node = 0;
  EXPECT_THAT(error_of([&] { join_ranks(first); }), HasSubstr("--node-rank 0"));
  // One that knows the secret and then speaks no word of it.
  const HostConnection stranger = connect_to_host(master, {"the word"}, 5s);
  ::shutdown(stranger.socket.number(), SHUT_RDWR);
  EXPECT_EQ(error_of([&] { join_ranks(places[2]); }), "no error");
  EXPECT_EQ(rank_0.get(), "no error");
  EXPECT_EQ(ranks_1.front().get(), "no error");
}

// Ranks of the run that have heard of a cause. In the program that is the end of their process.
std::atomic<int> num_ended;

// The ranks of a run as threads; `of_rank_0` runs while the others serve. By rank: what it ended with.
std::vector<std::string> run_nodes(const std::vector<HostPlace>& places, const EngineOptions& options,
                                   const std::function<void(LaunchedWorld&)>& of_rank_0) {
  std::vector<std::string> causes(places.size());
  num_ended = 0;
  std::vector<std::thread> threads;
  for (const HostPlace& place : places)
    threads.emplace_back([&, place] {
      std::string& cause = causes[static_cast<size_t>(place.rank())];
      const std::string error = error_of([&] {
        HostWorld ranks(place, [&](const std::string& text) {
          cause = text;
          ++num_ended;
        });
        if (place.rank() > 0) {
          serve_launched_rank(
              [&](const auto&) { return executor_options(options, open_model_folder(options.model), {}); },
              ranks.world());
          LADDER_CHECK(ranks.watch().wait_for_dismissal(60s) == 7, "another code than rank 0's");
          return;
        }
        of_rank_0(ranks.world());
        dismiss_launched_ranks(ranks.world());
        ranks.watch().dismiss(7);
      });
      if (cause.empty()) cause = error;
    });
  for (std::thread& thread : threads) thread.join();
  return causes;
}

std::vector<HostPlace> two_nodes(Grid grid, const HostAddress& master) {
  std::vector<HostPlace> places;
  const int ranks = grid.tp * grid.pp;
  for (int rank = 0; rank < ranks; ++rank) places.push_back(place_of(rank, 2, ranks / 2, master));
  return places;
}

EngineOptions on_world(EngineOptions options, LaunchedWorld& world) {
  options.makers.executor = make_launched_executor({"some", "words"}, world);
  return options;
}

class HostGrids : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(HostGrids, AnswerWhatOneRankAnswers) {
  const Grid grid{std::get<0>(GetParam()), std::get<1>(GetParam())};
  for (const std::string& name : testing::golden_names(testing::golden_folder())) {
    const auto checkpoint = testing::load_golden(testing::golden_folder() / name);
    if (!testing::fits(load_decoder_spec(checkpoint.directory), grid)) continue;
    const EngineOptions one =
        testing::small_options(checkpoint.directory, DeviceType::cpu, checkpoint.max_model_len);
    const std::vector<Request> requests = testing::greedy_requests(checkpoint);
    const auto expected = testing::engine_with(one)->generate(requests);
    const EngineOptions options = testing::on_grid(one, grid);
    const auto causes = run_nodes(two_nodes(grid, free_address()), options, [&](LaunchedWorld& world) {
      const auto outputs = testing::engine_with(on_world(options, world))->generate(requests);
      for (size_t i = 0; i < outputs.size(); ++i)
        EXPECT_TRUE(testing::answers_as_one_rank(expected[i], outputs[i], grid, name)) << i;
    });
    EXPECT_THAT(causes, Each("no error"));
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, HostGrids,
                         ::testing::Values(std::tuple(2, 1), std::tuple(1, 2), std::tuple(2, 2)),
                         [](const auto& info) {
                           return fmt::format("tp{}_pp{}", std::get<0>(info.param), std::get<1>(info.param));
                         });

// Node 1's way to node 0, over which each watches the other, while steps go on.
TEST(HostWorld, ACutOrAStallInTheMiddleOfStepsEndsAllInTime) {
  const Grid grid{2, 1};
  const auto checkpoint = testing::load_golden(testing::golden_folder() /
                                               testing::golden_names(testing::golden_folder()).front());
  const EngineOptions options = testing::on_grid(
      testing::small_options(checkpoint.directory, DeviceType::cpu, checkpoint.max_model_len), grid);
  for (const bool cut : {true, false}) {
    const HostAddress master = free_address();
    TcpProxy proxy(master);
    std::vector<HostPlace> places = two_nodes(grid, master);
    places[1].master = proxy.address();
    for (HostPlace& place : places) place.silence = 2s;
    Clock::time_point fault;
    const auto causes = run_nodes(places, options, [&](LaunchedWorld& world) {
      const auto engine = testing::engine_with(on_world(options, world));
      engine->generate(testing::greedy_requests(checkpoint));
      fault = Clock::now();
      cut ? proxy.cut() : proxy.stall();
      while (num_ended < 2 && Clock::now() - fault < 20s)
        engine->generate(testing::greedy_requests(checkpoint));
      fail("rank 0 ends");
    });
    EXPECT_LT(Clock::now() - fault, 20s);
    EXPECT_THAT(causes, Each(HasSubstr(cut ? "has ended" : "has said nothing for 2 s")));
    EXPECT_THAT(causes[0], HasSubstr("rank 1 (node 1, 127.0.0.1)"));
    EXPECT_THAT(causes[1], HasSubstr("rank 0 (node 0, 127.0.0.1)"));
  }
}

// What the ranks themselves say to each other goes through it.
TEST(TcpMesh, OverABadNetworkACallIsSlowOrAnErrorInTime) {
  for (const std::string fault : {"delay", "stall", "cut"}) {
    TcpMesh mesh_0("127.0.0.1", {}), mesh_1("127.0.0.1", {});
    TcpProxy proxy(mesh_0.address());
    const std::vector<TcpPlace> places = {{proxy.address(), "rank 0"}, {mesh_1.address(), "rank 1"}};
    mesh_0.meet(0, places);
    mesh_1.meet(1, places);
    const auto live = [&](TcpMesh& mesh, bool makes_it) {
      return error_of([&] {
        const auto group = mesh.group({0, 1}, 30s, 3s);
        for (int call = 0; call < 4; ++call) {
          const Tensor large = Tensor::from<float>(std::vector<float>(300'000, 1), {300'000});
          if (makes_it && call == 2) {
            if (fault == "delay") proxy.delay(30ms);
            if (fault == "stall") proxy.stall();
            if (fault == "cut") proxy.cut();
          }
          group->all_reduce({}, large);
          LADDER_CHECK(large.data<float>()[299'999] == 2, "a wrong sum");
        }
      });
    };
    auto other = std::async(std::launch::async, [&] { return live(mesh_1, false); });
    const std::string error = live(mesh_0, true), error_1 = other.get();
    if (fault == "delay") {
      EXPECT_EQ(error, "no error");
      EXPECT_EQ(error_1, "no error");
    } else {
      EXPECT_THAT(error, HasSubstr(fault == "cut" ? "rank 1 has ended" : "rank 1 did not answer rank 0"));
      EXPECT_THAT(error_1, HasSubstr(fault == "cut" ? "rank 0 has ended" : "rank 0 did not answer rank 1"));
    }
  }
}

}  // namespace
}  // namespace ladder
