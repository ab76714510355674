// What mlx-rs expects of mlx-c and mlx-c leaves out on some systems.
#include <cstdint>

#include "mlx/c/mlx.h"
#include "mlx/c/private/mlx.h"

extern "C" {

// mlx-c has half floats only where the C compiler does.
#ifndef HAS_FLOAT16
int mlx_array_item_float16(uint16_t* result, const mlx_array array) {
  try {
    *result = mlx_array_get_(array).item<uint16_t>();
    return 0;
  } catch (std::exception& error) {
    mlx_error(error.what());
    return 1;
  }
}
const uint16_t* mlx_array_data_float16(const mlx_array array) {
  return mlx_array_data_uint16(array);
}
#endif

#ifndef HAS_BFLOAT16
int mlx_array_item_bfloat16(uint16_t* result, const mlx_array array) {
  try {
    *result = mlx_array_get_(array).item<uint16_t>();
    return 0;
  } catch (std::exception& error) {
    mlx_error(error.what());
    return 1;
  }
}
const uint16_t* mlx_array_data_bfloat16(const mlx_array array) {
  return mlx_array_data_uint16(array);
}
#endif

// mlx-rs seeds its random numbers with this clock of Apple's.
#ifndef __APPLE__
#include <time.h>
uint64_t mach_approximate_time(void) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1000000000ull + uint64_t(now.tv_nsec);
}
#endif

} // extern "C"
