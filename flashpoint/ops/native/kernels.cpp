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

float float_of_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

uint32_t bits_of_float(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

// Code of a float that lies on the E4M3 grid (or is NaN).
uint8_t e4m3_code(float x) {
    const uint32_t bits = bits_of_float(x), sign = (bits >> 24) & 0x80;
    if (x != x) return 0x7F;
    const float size = std::fabs(x);
    if (size < 0x1p-6f) return sign | static_cast<uint8_t>(size * 0x1p9f);
    const uint32_t exponent = ((bits >> 23) & 0xFF) - 127 + 7;
    return sign | (exponent << 3) | ((bits >> 20) & 7);
}

// Code of a float that lies on the E2M1 grid; NaN gives the largest, as its group's scale says NaN.
uint8_t e2m1_code(float x) {
    constexpr uint8_t of_twice[13] = {0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7};
    if (x != x) return 7;
    return (bits_of_float(x) >> 28 & 8) | of_twice[static_cast<int>(2.0f * std::fabs(x))];
}

struct DecodeTables {
    float e4m3[256];
    float pairs[256][2];  // two E2M1 values, the low nibble's first

    DecodeTables() {
        constexpr float grid[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
        for (int code = 0; code < 256; ++code) {
            const int exponent = (code >> 3) & 15, mantissa = code & 7;
            float size = exponent ? std::ldexp(1.0f + mantissa / 8.0f, exponent - 7) : mantissa * 0x1p-9f;
            if ((code & 0x7F) == 0x7F) size = NAN;
            e4m3[code] = code & 0x80 ? -size : size;
            for (int half = 0; half < 2; ++half) {
                const int nibble = half ? code >> 4 : code & 15;
                pairs[code][half] = nibble & 8 ? -grid[nibble & 7] : grid[nibble & 7];
            }
        }
    }
};

const DecodeTables kTables;

float scale_of_exponent(uint8_t exponent) {
    return exponent == 0xFF ? NAN : float_of_bits(static_cast<uint32_t>(exponent) << 23);
}

uint8_t exponent_byte(float scale) { return (bits_of_float(scale) >> 23) & 0xFF; }

float scale_fp8(float peak) { return power_of_two_above((peak > 1e-4f ? peak : 1e-4f) * (1.0f / kFp8Max)); }

float scale_index(float peak) {
    constexpr float floor = kFp4Max * 0x1p-126f;
    return power_of_two_above((peak > floor ? peak : floor) * (1.0f / kFp4Max));
}

float scale_entry(float peak) {
    constexpr float floor = kFp4Max * 0x1p-9f;
    const float scale = (peak > floor ? peak : floor) / kFp4Max;
    return round_e4m3(scale < kFp8Max ? scale : kFp8Max);
}

// Rows of codes followed by their groups' scales. `put(out, i, v)` stores the code of the row's value i.
template <int Group, typename Scale, typename Round, typename Put, typename ScaleByte>
void encode(const float* x, uint8_t* out, int64_t rows, int64_t width, int64_t code_bytes, float limit,
            Scale scale_of, Round round, Put put, ScaleByte scale_byte) {
    const int64_t groups = width / Group;
    for (int64_t row = 0; row < rows; ++row, x += width, out += code_bytes + groups) {
        for (int64_t group = 0; group < groups; ++group) {
            const float* values = x + group * Group;
            float peak = 0.0f;
            bool is_finite = true;
            for (int i = 0; i < Group; ++i) {
                const float size = std::fabs(values[i]);
                peak = size > peak ? size : peak;
                is_finite &= size <= FLT_MAX;
            }
            const float scale = is_finite ? scale_of(peak) : NAN;
            for (int i = 0; i < Group; ++i) {
                float v = values[i] / scale;
                v = v > limit ? limit : v < -limit ? -limit : v;
                put(out, group * Group + i, round(v));
            }
            out[code_bytes + group] = scale_byte(scale);
        }
    }
}

void put_nibble(uint8_t* out, int64_t i, float v) {
    const uint8_t code = e2m1_code(v);
    out[i / 2] = i % 2 ? out[i / 2] | code << 4 : code;
}

// Row `index[i]` of `rows` into row i of `out`.
template <int Group, typename ScaleOf>
void decode_fp4(const uint8_t* rows, const int64_t* index, float* out, int64_t count, int64_t width,
                ScaleOf scale_of) {
    const int64_t packed = width / 2, groups = width / Group;
    for (int64_t i = 0; i < count; ++i, out += width) {
        const uint8_t* row = rows + index[i] * (packed + groups);
        for (int64_t group = 0; group < groups; ++group) {
            const float scale = scale_of(row[packed + group]);
            const uint8_t* codes = row + group * (Group / 2);
            float* values = out + group * Group;
            for (int byte = 0; byte < Group / 2; ++byte) {
                values[2 * byte] = kTables.pairs[codes[byte]][0] * scale;
                values[2 * byte + 1] = kTables.pairs[codes[byte]][1] * scale;
            }
        }
    }
}

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
    quantise_dequantise<32>(x, out, groups, kFp8Max, scale_fp8, round_e4m3);
}

// quantization.reference.index_qdq over groups of 32.
void flashpoint_index_qdq(const float* x, float* out, int64_t groups) {
    quantise_dequantise<32>(x, out, groups, kFp4Max, scale_index, round_e2m1);
}

// quantization.reference.encode_window: x [rows, width] -> out [rows, width + width / 32].
void flashpoint_encode_window(const float* x, uint8_t* out, int64_t rows, int64_t width) {
    encode<32>(
        x, out, rows, width, width, kFp8Max, scale_fp8, round_e4m3,
        [](uint8_t* row, int64_t i, float v) { row[i] = e4m3_code(v); }, exponent_byte);
}

// quantization.reference.encode_index: x [rows, width] -> out [rows, width / 2 + width / 32].
void flashpoint_encode_index(const float* x, uint8_t* out, int64_t rows, int64_t width) {
    encode<32>(x, out, rows, width, width / 2, kFp4Max, scale_index, round_e2m1, put_nibble, exponent_byte);
}

// quantization.reference.encode_entry: x [rows, width] -> out [rows, width / 2 + width / 16].
void flashpoint_encode_entry(const float* x, uint8_t* out, int64_t rows, int64_t width) {
    encode<16>(x, out, rows, width, width / 2, kFp4Max, scale_entry, round_e2m1, put_nibble, e4m3_code);
}

// quantization.reference.decode_window of indexed rows: out [count, width].
void flashpoint_decode_window(const uint8_t* rows, const int64_t* index, float* out, int64_t count,
                              int64_t width) {
    const int64_t groups = width / 32;
    for (int64_t i = 0; i < count; ++i, out += width) {
        const uint8_t* row = rows + index[i] * (width + groups);
        for (int64_t group = 0; group < groups; ++group) {
            const float scale = scale_of_exponent(row[width + group]);
            for (int64_t at = group * 32; at < (group + 1) * 32; ++at) out[at] = kTables.e4m3[row[at]] * scale;
        }
    }
}

// quantization.reference.decode_index of indexed rows: out [count, width].
void flashpoint_decode_index(const uint8_t* rows, const int64_t* index, float* out, int64_t count,
                             int64_t width) {
    decode_fp4<32>(rows, index, out, count, width, scale_of_exponent);
}

// quantization.reference.decode_entry of indexed rows: out [count, width].
void flashpoint_decode_entry(const uint8_t* rows, const int64_t* index, float* out, int64_t count,
                             int64_t width) {
    decode_fp4<16>(rows, index, out, count, width, [](uint8_t code) { return kTables.e4m3[code]; });
}

}  // extern "C"
