#pragma once
// CUDA's vector types: one access of their whole size, which must be aligned to it.
#include <stdint.h>

#define LADDER_VECTORS(T, name, align2, align4)       \
  struct alignas(align2) name##2 {                    \
    T x, y;                                           \
  };                                                  \
  struct alignas(align4) name##4 {                    \
    T x, y, z, w;                                     \
  };                                                  \
  inline name##2 make_##name##2(T x, T y) {           \
    return {x, y};                                    \
  }                                                   \
  inline name##4 make_##name##4(T x, T y, T z, T w) { \
    return {x, y, z, w};                              \
  }

LADDER_VECTORS(float, float, 8, 16)
LADDER_VECTORS(int, int, 8, 16)
LADDER_VECTORS(unsigned, uint, 8, 16)
LADDER_VECTORS(short, short, 4, 8)
LADDER_VECTORS(unsigned short, ushort, 4, 8)
LADDER_VECTORS(unsigned char, uchar, 2, 4)
#undef LADDER_VECTORS

struct alignas(16) double2 {
  double x, y;
};
struct alignas(16) longlong2 {
  long long x, y;
};
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};
struct float3 {
  float x, y, z;
};
