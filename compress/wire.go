package compress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/gradpress/gradpress/kernels"
)

// Version is the first byte of every message. docs/wire.md describes the rest bit by bit.
const Version = 1

// AppendHeader begins a message.
func AppendHeader(dst []byte) []byte { return append(dst, Version) }

// CheckHeader checks the beginning of a message and returns what follows.
func CheckHeader(src []byte) ([]byte, error) {
	if len(src) == 0 {
		return nil, errTruncated
	}
	if src[0] != Version {
		return nil, fmt.Errorf("message version %d, want %d: do all ranks run the same program?", src[0], Version)
	}
	return src[1:], nil
}

// AppendSparse appends the encoding of p with the given entries to dst: the count, unless p is full; the indices; the scale, where values
// need one that is not agreed; the values.
func AppendSparse(dst []byte, p *Sparse, idx []uint32, val []float32, scale float32) []byte {
	if !p.Full {
		dst = binary.AppendUvarint(dst, uint64(len(idx)))
	}
	dst = appendIndices(dst, p.N, idx)
	if len(val) == 0 {
		return dst
	}
	if p.sendsScale() {
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(scale))
	}
	switch p.Values {
	case Float32:
		for _, v := range val {
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
		}
	case Float16:
		var h [1]uint16
		for j := range val {
			kernels.ToHalf(kernels.F16, h[:], val[j:j+1])
			dst = binary.LittleEndian.AppendUint16(dst, h[0])
		}
	case Int8:
		for _, v := range val {
			dst = append(dst, byte(kernels.Int8Level(v, scale)))
		}
	case Sign:
		w := bitWriter{b: dst}
		for _, v := range val {
			w.put(uint64(math.Float32bits(v)>>31), 1)
		}
		dst = w.flush()
	}
	return dst
}

func (p *Sparse) sendsScale() bool { return !p.Agreed && (p.Values == Int8 || p.Values == Sign) }

// DecodeSparse reads what AppendSparse wrote for a payload like p into idx and val, whose equal length is the most that may come, and
// exactly what must come when p is full. scale is what all ranks know, where p says that it is agreed. It returns how many entries came
// and the bytes after them. Whatever the bytes, indices ascend within [0, p.N), values are finite, and nothing is allocated.
func DecodeSparse(src []byte, p *Sparse, idx []uint32, val []float32, scale float32) (k int, rest []byte, err error) {
	k = len(idx)
	if !p.Full {
		c, after, err := uvarint(src, uint64(k))
		if err != nil {
			return 0, nil, fmt.Errorf("count: %w", err)
		}
		k, src = int(c), after
	}
	if src, err = decodeIndices(src, p.N, idx[:k]); err != nil {
		return 0, nil, fmt.Errorf("indices: %w", err)
	}
	if k == 0 {
		return 0, src, nil
	}
	if p.sendsScale() {
		if len(src) < 4 {
			return 0, nil, fmt.Errorf("scale: %w", errTruncated)
		}
		scale, src = math.Float32frombits(binary.LittleEndian.Uint32(src)), src[4:]
		if !(scale >= 0 && scale <= math.MaxFloat32/127) && (p.Values == Int8 || !(scale >= 0 && scale <= math.MaxFloat32)) {
			return 0, nil, fmt.Errorf("scale is %v", scale)
		}
	}
	if src, err = decodeValues(src, p.Values, val[:k], scale); err != nil {
		return 0, nil, fmt.Errorf("values: %w", err)
	}
	return k, src, nil
}

func decodeValues(src []byte, c Values, val []float32, scale float32) (rest []byte, err error) {
	k := len(val)
	if size := (k*[...]int{32, 16, 8, 1}[c] + 7) / 8; len(src) < size {
		return nil, errTruncated
	}
	switch c {
	case Float32, Float16:
		for j := range val {
			if c == Float32 {
				val[j] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*j:]))
			} else {
				kernels.FromHalf(kernels.F16, val[j:j+1], []uint16{binary.LittleEndian.Uint16(src[2*j:])})
			}
			if val[j]-val[j] != 0 {
				return nil, fmt.Errorf("value %d is %v", j, val[j])
			}
		}
		return src[4/(1+int(c))*k:], nil
	case Int8:
		for j := range val {
			q := int8(src[j])
			if q == -128 {
				return nil, fmt.Errorf("value %d is below -127", j)
			}
			val[j] = float32(q) * scale
		}
		return src[k:], nil
	default:
		r := bitReader{b: src}
		for j := range val {
			minus, err := r.get(1)
			if err != nil {
				return nil, err
			}
			if val[j] = scale; minus == 1 {
				val[j] = -scale
			}
		}
		return r.rest()
	}
}

// uvarint reads a minimal varint of at most most.
func uvarint(src []byte, most uint64) (v uint64, rest []byte, err error) {
	v, used := binary.Uvarint(src)
	switch {
	case used <= 0:
		return 0, nil, errTruncated
	case used > 1 && src[used-1] == 0:
		return 0, nil, errors.New("a varint has a byte too many")
	case v > most:
		return 0, nil, fmt.Errorf("%d, at most %d", v, most)
	}
	return v, src[used:], nil
}

// Indices are coded in one of three ways, told apart by a prefix: 0, Rice gaps with the parameter that suits evenly spread indices,
// which both sides know; 10, Rice gaps with a parameter of 5 bits; 11, a bitmap of n bits. No indices take no bits at all.

// riceParameter is the best parameter for k indices spread evenly over n: 1 + floor(log2(ln(phi-1) / ln(1-k/n))) (Kiely, "Selecting
// the Golomb parameter in Rice coding", 2004), in integers so that every machine finds the same.
func riceParameter(n, k int) uint {
	// -ln(phi-1) = 493/1024, and -1/ln(1-p) is close to 1/p - 1/2.
	return uint(min(bits.Len64((2*uint64(n)-uint64(k))*493/(2048*uint64(k))), 31))
}

func appendIndices(dst []byte, n int, idx []uint32) []byte {
	if len(idx) == 0 {
		return dst
	}
	w := bitWriter{b: dst}
	usual := riceParameter(n, len(idx))
	best, cost := usual, riceCost(idx, usual)
	for b := uint(0); b <= min(usual+3, 31); b++ {
		if c := riceCost(idx, b) + 6; c < cost {
			best, cost = b, c
		}
	}
	switch {
	case uint64(n)+1 < cost:
		w.put(3, 2)
		next := uint32(0)
		for _, i := range idx {
			for ; next < i; next++ {
				w.put(0, 1)
			}
			w.put(1, 1)
			next++
		}
		for ; next < uint32(n); next++ {
			w.put(0, 1)
		}
		return w.flush()
	case best == usual:
		w.put(0, 1)
	default:
		w.put(1, 2)
		w.put(uint64(best), 5)
	}
	next := uint32(0)
	for _, i := range idx {
		gap := i - next
		q := gap >> best
		for ; q >= 32; q -= 32 {
			w.put(1<<32-1, 32)
		}
		w.put(1<<q-1, uint(q)+1)
		w.put(uint64(gap)&(1<<best-1), best)
		next = i + 1
	}
	return w.flush()
}

// riceCost is how many bits the gaps take with parameter b.
func riceCost(idx []uint32, b uint) uint64 {
	c, next := uint64(len(idx))*uint64(b+1), uint32(0)
	for _, i := range idx {
		c += uint64((i - next) >> b)
		next = i + 1
	}
	return c
}

func decodeIndices(src []byte, n int, idx []uint32) (rest []byte, err error) {
	if len(idx) == 0 {
		return src, nil
	}
	r := bitReader{b: src}
	b := uint64(riceParameter(n, len(idx)))
	explicit, err := r.get(1)
	if err != nil {
		return nil, err
	}
	if explicit == 1 {
		bitmap, err := r.get(1)
		if err != nil {
			return nil, err
		}
		if bitmap == 1 {
			return decodeBitmap(&r, n, idx)
		}
		if b, err = r.get(5); err != nil {
			return nil, err
		}
	}
	next := uint64(0)
	for j := range idx {
		q, err := r.unary(uint64(n) >> b)
		if err != nil {
			return nil, err
		}
		low, err := r.get(uint(b))
		if err != nil {
			return nil, err
		}
		i := next + q<<b + low
		if i >= uint64(n) {
			return nil, errRange
		}
		idx[j] = uint32(i)
		next = i + 1
	}
	return r.rest()
}

func decodeBitmap(r *bitReader, n int, idx []uint32) ([]byte, error) {
	k := 0
	for i := 0; i < n; i += 56 {
		width := min(56, n-i)
		word, err := r.get(uint(width))
		if err != nil {
			return nil, err
		}
		for ; word != 0; word &= word - 1 {
			if k == len(idx) {
				return nil, errBitmap
			}
			idx[k] = uint32(i + bits.TrailingZeros64(word))
			k++
		}
	}
	if k != len(idx) {
		return nil, errBitmap
	}
	return r.rest()
}

var errBitmap = errors.New("the bitmap does not hold as many ones as were announced")
