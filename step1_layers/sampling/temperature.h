#pragma once

namespace ladder {

// A row with a temperature below this is greedy, as with 0: quotients by much less overflow, and its noise
// would only decide between logits that lie within 23 times as much of each other.
inline constexpr float kMinTemperature = 1e-5f;

}  // namespace ladder
