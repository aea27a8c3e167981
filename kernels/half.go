package kernels

import (
	"fmt"
	"math"
)

//go:generate go run -C _generate ./half -out ../half_amd64.s -stubs ../half_amd64.go -pkg kernels

// ToHalf rounds src to the two-byte format t (F16 or BF16) in dst: to nearest, ties to even. What is too large becomes infinite;
// a NaN stays one and keeps its sign and the top of its payload. Lengths must agree.
func ToHalf(t DType, dst []uint16, src []float32) {
	sameLen("ToHalf", len(dst), len(src))
	switch t {
	case F16:
		for avx2 && len(src) >= 16 {
			n := toF16AVX2(dst, src[:min(len(src), piece)])
			dst, src = dst[n:], src[n:]
		}
		for i, x := range src {
			dst[i] = toF16(x)
		}
	case BF16:
		for avx2 && len(src) >= 16 {
			n := toBF16AVX2(dst, src[:min(len(src), piece)])
			dst, src = dst[n:], src[n:]
		}
		for i, x := range src {
			dst[i] = toBF16(x)
		}
	default:
		panic(fmt.Sprintf("kernels: ToHalf to %v", t))
	}
}

// FromHalf widens src from the two-byte format t (F16 or BF16), exactly; a NaN stays one. Lengths must agree.
func FromHalf(t DType, dst []float32, src []uint16) {
	sameLen("FromHalf", len(dst), len(src))
	switch t {
	case F16:
		for avx2 && len(dst) >= 16 {
			n := fromF16AVX2(dst[:min(len(dst), piece)], src)
			dst, src = dst[n:], src[n:]
		}
		for i, h := range src {
			dst[i] = fromF16(h)
		}
	case BF16:
		for avx2 && len(dst) >= 16 {
			n := fromBF16AVX2(dst[:min(len(dst), piece)], src)
			dst, src = dst[n:], src[n:]
		}
		for i, h := range src {
			dst[i] = fromBF16(h)
		}
	default:
		panic(fmt.Sprintf("kernels: FromHalf from %v", t))
	}
}

// Bits of float32 values where binary16 changes its behaviour.
const (
	f32Inf    = 0xff << 23
	f16Over   = (127 + 16) << 23 // 65536: from here on infinite
	f16Normal = (127 - 14) << 23 // 2^-14: the smallest normal number
)

func toF16(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	b &^= 1 << 31
	switch {
	case b > f32Inf:
		return sign | 0x7e00 | uint16(b>>13&0x3ff)
	case b >= f16Over:
		return sign | 0x7c00
	case b < f16Normal:
		// The last bit of 0.5 in float32 is 2^-24, that of a subnormal binary16: the addition rounds.
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-math.Float32bits(0.5))
	}
	b += (b>>13)&1 + 0xfff // round to even; may carry into the exponent, up to infinity
	return sign | uint16((b-(127-15)<<23)>>13)
}

func fromF16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	b := uint32(h&0x7fff) << 13
	switch h & 0x7c00 {
	case 0x7c00: // infinite, or a NaN, which is quiet from here on, as processors have it
		if b |= f32Inf; b != f32Inf {
			b |= 1 << 22
		}
	case 0: // zero or subnormal, in units of 2^-24
		return math.Float32frombits(sign | math.Float32bits(float32(h&0x3ff)*0x1p-24))
	default:
		b += (127 - 15) << 23
	}
	return math.Float32frombits(sign | b)
}

func toBF16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&^(1<<31) > f32Inf {
		return uint16(b>>16) | 0x40 // quiet: the payload's top could be all zero
	}
	return uint16((b + (b>>16)&1 + 0x7fff) >> 16)
}

func fromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }
