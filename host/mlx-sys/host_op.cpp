// An MLX operation on the CPU whose kernel is a function of the host: lazy and
// asynchronous like every other operation, run in order on MLX's stream.
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/c/mlx.h"
#include "mlx/c/private/mlx.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

extern "C" {
// inputs, their numbers of elements, how many inputs; output, its number of
// elements. Must not throw.
typedef void (*sluice_kernel)(
    void* context,
    const float* const* inputs,
    const size_t* sizes,
    size_t n_inputs,
    float* output,
    size_t output_size);
typedef void (*sluice_drop)(void* context);
enum { SLUICE_NOT_CPU = 1, SLUICE_NOT_FLOAT32 = 2, SLUICE_FAILED = 3 };
}

namespace {

using namespace mlx::core;

class HostOp : public Primitive {
 public:
  HostOp(Stream stream, sluice_kernel kernel, std::shared_ptr<void> context)
      : Primitive(stream), kernel_(kernel), context_(std::move(context)) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    auto& output = outputs[0];
    output.set_data(allocator::malloc(output.nbytes()));
    auto& encoder = cpu::get_command_encoder(stream());
    std::vector<const float*> pointers;
    std::vector<size_t> sizes;
    for (auto& input : inputs) {
      if (!input.flags().row_contiguous) {
        throw std::runtime_error("[HostOp] an input is not contiguous");
      }
      encoder.set_input_array(input);
      pointers.push_back(input.data<float>());
      sizes.push_back(input.size());
    }
    encoder.set_output_array(output);
    // The task owns the context: it outlives this primitive if it must.
    encoder.dispatch([kernel = kernel_,
                      context = context_,
                      pointers = std::move(pointers),
                      sizes = std::move(sizes),
                      to = output.data<float>(),
                      size = output.size()]() {
      kernel(context.get(), pointers.data(), sizes.data(), pointers.size(), to, size);
    });
  }

  void eval_gpu(const std::vector<array>&, std::vector<array>&) override {
    throw std::runtime_error("[HostOp] runs on the CPU only");
  }

  const char* name() const override {
    return "HostOp";
  }

 private:
  sluice_kernel kernel_;
  std::shared_ptr<void> context_;
};

array row_contiguous(const array& input, Stream stream) {
  if (input.is_available() && input.flags().row_contiguous) {
    return input;
  }
  // What such an operation gives always is.
  if (input.has_primitive() && dynamic_cast<HostOp*>(&input.primitive())) {
    return input;
  }
  return contiguous(input, false, stream);
}

} // namespace

// Takes ownership of `context` in every case. Returns 0 or one of the
// constants above.
extern "C" int sluice_host_op(
    mlx_array* result,
    const int* shape,
    size_t n_dimensions,
    const mlx_vector_array inputs,
    sluice_kernel kernel,
    void* context,
    sluice_drop drop,
    const mlx_stream stream) {
  try {
    std::shared_ptr<void> owned(context, drop);
    auto on = mlx_stream_get_(stream);
    if (on.device != Device::cpu) {
      return SLUICE_NOT_CPU;
    }
    std::vector<array> arrays;
    for (auto& input : mlx_vector_array_get_(inputs)) {
      if (input.dtype() != float32) {
        return SLUICE_NOT_FLOAT32;
      }
      arrays.push_back(row_contiguous(input, on));
    }
    array output(
        Shape(shape, shape + n_dimensions),
        float32,
        std::make_shared<HostOp>(on, kernel, std::move(owned)),
        std::move(arrays));
    mlx_array_set_(*result, std::move(output));
    return 0;
  } catch (std::exception&) {
    return SLUICE_FAILED;
  }
}
