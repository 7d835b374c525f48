// Small per-token loops that would cost torch dozens of operator calls each.
// Plain C interface; every array is dense, row-major fp32 unless said otherwise. Each function is defined by
// the Python reference named above it and tested against it.

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr int kCopies = 4;
constexpr int kMixes = kCopies * (2 + kCopies);

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

float mean_square(const float* x, int64_t n) {
    // Eight sums, so that the compiler may use vector registers without reordering one sum.
    float sums[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int lane = 0; lane < 8; ++lane) sums[lane] += x[i + lane] * x[i + lane];
    double total = 0.0;
    for (; i < n; ++i) total += static_cast<double>(x[i]) * x[i];
    for (float sum : sums) total += sum;
    return static_cast<float>(total / n);
}

// Softmax over rows, then columns, then rows and columns in turn.
void sinkhorn(float (&comb)[kCopies][kCopies], int iterations, float eps) {
    for (auto& row : comb) {
        float peak = row[0];
        for (float v : row) peak = v > peak ? v : peak;
        float sum = 0.0f;
        for (float& v : row) sum += (v = std::exp(v - peak));
        for (float& v : row) v = v / sum + eps;
    }
    for (int iteration = 0; iteration < iterations; ++iteration) {
        if (iteration > 0) {
            for (auto& row : comb) {
                float sum = eps;
                for (float v : row) sum += v;
                for (float& v : row) v /= sum;
            }
        }
        for (int column = 0; column < kCopies; ++column) {
            float sum = eps;
            for (auto& row : comb) sum += row[column];
            for (auto& row : comb) row[column] /= sum;
        }
    }
}

// 2^ceil(log2(x)) for positive normal x.
float power_of_two_above(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits = ((bits >> 23) + ((bits & 0x7FFFFF) != 0)) << 23;
    std::memcpy(&x, &bits, sizeof bits);
    return x;
}

// 2^max(floor(log2 |x|), lowest).
float power_of_two_below(float x, int lowest) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint32_t exponent = (bits >> 23) & 0xFF, floor = lowest + 127;
    bits = (exponent > floor ? exponent : floor) << 23;
    std::memcpy(&x, &bits, sizeof bits);
    return x;
}

// Nearest multiple of a power-of-two step, halves to even: the even code on every grid used here.
float round_e4m3(float x) {
    const float step = power_of_two_below(x, -6) * 0.125f;
    return std::nearbyint(x / step) * step;
}

float round_e2m1(float x) {
    const float step = power_of_two_below(x, 0) * 0.5f;
    return std::nearbyint(x / step) * step;
}

template <int Group, typename Scale, typename Round>
void quantise_dequantise(const float* x, float* out, int64_t groups, float limit, Scale scale_of, Round round) {
    for (int64_t group = 0; group < groups; ++group, x += Group, out += Group) {
        float peak = 0.0f;
        bool is_finite = true;
        for (int i = 0; i < Group; ++i) {
            const float size = std::fabs(x[i]);
            peak = size > peak ? size : peak;
            is_finite &= size <= FLT_MAX;
        }
        // A maximum that ignores NaN would hide it; the reference spreads it over the group.
        const float scale = is_finite ? scale_of(peak) : NAN;
        for (int i = 0; i < Group; ++i) {
            float v = x[i] / scale;
            v = v > limit ? limit : v < -limit ? -limit : v;
            out[i] = round(v) * scale;
        }
    }
}

constexpr float kFp8Max = 448.0f, kFp4Max = 6.0f;

}  // namespace

extern "C" {

// hyper_connections.reference.mix, behind its matrix product.
// stream [rows, width]; dots [rows, 24] = fn · stream; base [24]; scale [3].
// pre, post [rows, 4]; comb [rows, 4, 4].
void flashpoint_mix(const float* stream, const float* dots, const float* base, const float* scale,
                    int64_t rows, int64_t width, int iterations, float eps, float norm_eps, float* pre,
                    float* post, float* comb) {
    for (int64_t row = 0; row < rows; ++row) {
        const float norm = 1.0f / std::sqrt(mean_square(stream + row * width, width) + norm_eps);
        const float* dot = dots + row * kMixes;
        for (int i = 0; i < kCopies; ++i) {
            pre[row * kCopies + i] = sigmoid(dot[i] * norm * scale[0] + base[i]) + eps;
            post[row * kCopies + i] =
                2.0f * sigmoid(dot[kCopies + i] * norm * scale[1] + base[kCopies + i]);
        }
        float square[kCopies][kCopies];
        for (int i = 0; i < kCopies; ++i)
            for (int j = 0; j < kCopies; ++j) {
                const int at = 2 * kCopies + i * kCopies + j;
                square[i][j] = dot[at] * norm * scale[2] + base[at];
            }
        sinkhorn(square, iterations, eps);
        for (int i = 0; i < kCopies; ++i)
            for (int j = 0; j < kCopies; ++j) comb[(row * kCopies + i) * kCopies + j] = square[i][j];
    }
}

// quantization.reference.fp8_qdq over groups of 32.
void flashpoint_fp8_qdq(const float* x, float* out, int64_t groups) {
    quantise_dequantise<32>(
        x, out, groups, kFp8Max,
        [](float peak) { return power_of_two_above((peak > 1e-4f ? peak : 1e-4f) * (1.0f / kFp8Max)); },
        round_e4m3);
}

// quantization.reference.index_qdq over groups of 32.
void flashpoint_index_qdq(const float* x, float* out, int64_t groups) {
    constexpr float floor = kFp4Max * 0x1p-126f;
    quantise_dequantise<32>(
        x, out, groups, kFp4Max,
        [](float peak) { return power_of_two_above((peak > floor ? peak : floor) * (1.0f / kFp4Max)); },
        round_e2m1);
}

// quantization.reference.entry_qdq over groups of 16.
void flashpoint_entry_qdq(const float* x, float* out, int64_t groups) {
    constexpr float floor = kFp4Max * 0x1p-9f;
    quantise_dequantise<16>(
        x, out, groups, kFp4Max,
        [](float peak) {
            const float scale = (peak > floor ? peak : floor) / kFp4Max;
            return round_e4m3(scale < kFp8Max ? scale : kFp8Max);
        },
        round_e2m1);
}

}  // extern "C"
