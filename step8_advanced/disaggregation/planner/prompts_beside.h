#pragma once
// How many prompts an engine that does both computes between an answer's first token and its last.
//
// An answer begins when its prompt ends, and that is no moment like any other: who came while its prompt waited and was computed
// is next, and whoever comes meanwhile follows. Where prompts take r S = 0.6 of an engine's time, more than half of the answers
// see a prompt, however short they are; in the mean over time a short answer would see almost none.
//
// To the prompts the answer is a job that waits for all of them: `answer` seconds of steps of its own, and each prompt that comes
// before it is done makes it `prompt` seconds longer, in which more come. All of it is one busy time, begun by the job and
// the L prompts that its own has left behind, and the number M that come in it is a generalized Poisson variable (Borel and
// Tanner; Consul and Jain 1973):
//
//   P(M = m) = t (t + m l)^(m-1) e^-(t + m l) / m!      l = rate prompt, t = rate (answer + L prompt)
//
// L is what a departure leaves in M/D/1, but for its first share: Queue::waits of all prompts come upon another one, so as many
// leave one behind. With chunks an answer gets a token for each step of a prompt too, and then sees at most `most` of them.
#include <vector>

#include "step8_advanced/disaggregation/planner/formulas.h"

namespace ladder {

struct AnswerAmongPrompts {
  Queue queue;        // of the prompts; stable
  double rate = 0;    // of prompts, of this engine
  double answer = 0;  // seconds of the steps after its first token, if they are its own alone
  double prompt = 0;  // seconds by which a prompt makes them longer
  double most = 0;    // prompts of which every step of the answer has a part
};

// Shares of answers that see 0, 1, ... prompts, whole ones; the last of them sees as many or more, at most `most`.
std::vector<double> prompts_beside(const AnswerAmongPrompts& among);
// In the mean.
double mean_prompts_beside(const AnswerAmongPrompts& among);

}  // namespace ladder
