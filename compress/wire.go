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

// Encoder builds a message of Sparse and Packed payloads. Counts, indices and signs of all of them share one run of bits, so that small
// tensors lose nothing to padding; everything else follows in bytes.
type Encoder struct {
	bits  bitWriter
	bytes []byte
	out   []byte
}

// Reset begins a message. The one before is dead.
func (e *Encoder) Reset() { e.bits, e.bytes = bitWriter{b: append(e.bits.b[:0], Version)}, e.bytes[:0] }

// Sparse adds p with the given entries.
func (e *Encoder) Sparse(p *Sparse, idx []uint32, val []float32, scale float32) {
	e.bits.head(p, idx, val)
	e.bytes = appendValues(e.bytes, p, val, scale)
}

// Packed adds p with the given bytes.
func (e *Encoder) Packed(p *Packed, b []byte) { e.bytes = AppendPacked(e.bytes, p, b) }

// Message is what has been built, until the next Reset.
func (e *Encoder) Message() []byte {
	e.out = append(append(e.out[:0], e.bits.flush()...), e.bytes...)
	return e.out
}

// Decoder reads a message: Head for each Sparse in order, then Body, then Values for each Sparse and Packed for each Packed in order, then
// End. Whatever the bytes, indices ascend within [0, N), values are finite, and nothing that the message decides on is allocated.
type Decoder struct {
	bits  bitReader
	signs []bitReader // where those of each Sparse begin
	turn  int
	bytes []byte
}

// Reset begins with src, which must stay as it is until End.
func (d *Decoder) Reset(src []byte) error {
	if len(src) == 0 {
		return errTruncated
	}
	if src[0] != Version {
		return fmt.Errorf("message version %d, want %d: do all ranks run the same program?", src[0], Version)
	}
	d.bits, d.signs, d.turn = bitReader{b: src[1:]}, d.signs[:0], 0
	return nil
}

// Head reads the indices of a payload like p into idx, whose length is the most that may come, and exactly what must come when p is full. It
// returns how many came.
func (d *Decoder) Head(p *Sparse, idx []uint32) (k int, err error) {
	k, signs, err := d.bits.head(p, idx)
	d.signs = append(d.signs, signs)
	return k, err
}

// Body ends the heads.
func (d *Decoder) Body() (err error) {
	d.bytes, err = d.bits.rest()
	return err
}

// Values reads the values of the next Sparse. scale is what all ranks know, where p says that it is agreed.
func (d *Decoder) Values(p *Sparse, val []float32, scale float32) (err error) {
	signs := d.signs[d.turn]
	d.turn++
	d.bytes, err = decodeValues(d.bytes, p, val, scale, signs)
	return err
}

// Packed reads the bytes of the next Packed into b, as DecodePacked does.
func (d *Decoder) Packed(p *Packed, b []byte) (n int, err error) {
	n, d.bytes, err = DecodePacked(d.bytes, p, b)
	return n, err
}

// End checks that nothing is left.
func (d *Decoder) End() error {
	if len(d.bytes) != 0 {
		return fmt.Errorf("%d bytes too long", len(d.bytes))
	}
	return nil
}

// AppendSparse appends the encoding of p alone, as it would stand in a message of its own.
func AppendSparse(dst []byte, p *Sparse, idx []uint32, val []float32, scale float32) []byte {
	w := bitWriter{b: dst}
	w.head(p, idx, val)
	return appendValues(w.flush(), p, val, scale)
}

// DecodeSparse reads what AppendSparse wrote into idx and val, of equal length, and returns how many entries came and the bytes after them.
func DecodeSparse(src []byte, p *Sparse, idx []uint32, val []float32, scale float32) (k int, rest []byte, err error) {
	r := bitReader{b: src}
	k, signs, err := r.head(p, idx)
	if err == nil {
		src, err = r.rest()
	}
	if err == nil {
		src, err = decodeValues(src, p, val[:k], scale, signs)
	}
	if err != nil {
		return 0, nil, err
	}
	return k, src, nil
}

// head writes the count, unless p is full, the indices, and signs where these are the values.
func (w *bitWriter) head(p *Sparse, idx []uint32, val []float32) {
	if !p.Full {
		w.uvarint(uint64(len(idx)))
	}
	w.indices(p.N, idx)
	if p.Values == Sign {
		for ; len(val) > 0; val = val[min(len(val), 56):] {
			word, some := uint64(0), val[:min(len(val), 56)]
			for j, v := range some {
				word |= uint64(math.Float32bits(v)>>31) << j
			}
			w.put(word, uint(len(some)))
		}
	}
}

func (r *bitReader) head(p *Sparse, idx []uint32) (k int, signs bitReader, err error) {
	k = len(idx)
	if !p.Full {
		c, err := r.uvarint(uint64(k))
		if err != nil {
			return 0, signs, fmt.Errorf("count: %w", err)
		}
		k = int(c)
	}
	if err := r.indices(p.N, idx[:k]); err != nil {
		return 0, signs, fmt.Errorf("indices: %w", err)
	}
	signs = *r
	if p.Values == Sign {
		for left := k; left > 0; left -= 56 {
			if _, err := r.get(uint(min(left, 56))); err != nil {
				return 0, signs, fmt.Errorf("signs: %w", err)
			}
		}
	}
	return k, signs, nil
}

// uvarint writes a varint wherever the last bit ended.
func (w *bitWriter) uvarint(v uint64) {
	for ; v >= 0x80; v >>= 7 {
		w.put(v&0x7f|0x80, 8)
	}
	w.put(v, 8)
}

func (r *bitReader) uvarint(most uint64) (v uint64, err error) {
	for shift := uint(0); ; shift += 7 {
		b, err := r.get(8)
		switch {
		case err != nil:
			return 0, err
		case b == 0 && shift > 0:
			return 0, errLongVarint
		case shift > 56:
			return 0, errRange
		}
		if v |= b & 0x7f << shift; b < 0x80 {
			break
		}
	}
	if v > most {
		return 0, fmt.Errorf("%d, at most %d", v, most)
	}
	return v, nil
}

func (p *Sparse) sendsScale() bool { return !p.Agreed && (p.Values == Int8 || p.Values == Sign) }

// appendValues appends the scale, where values need one that is not agreed, and the values, where they are not signs.
func appendValues(dst []byte, p *Sparse, val []float32, scale float32) []byte {
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
	}
	return dst
}

func decodeValues(src []byte, p *Sparse, val []float32, scale float32, signs bitReader) (rest []byte, err error) {
	k := len(val)
	if k == 0 {
		return src, nil
	}
	if p.sendsScale() {
		if len(src) < 4 {
			return nil, fmt.Errorf("scale: %w", errTruncated)
		}
		scale, src = math.Float32frombits(binary.LittleEndian.Uint32(src)), src[4:]
		most := float32(math.MaxFloat32)
		if p.Values == Int8 {
			most /= 127
		}
		if !(scale >= 0 && scale <= most) {
			return nil, fmt.Errorf("scale is %v", scale)
		}
	}
	size := k * [...]int{4, 2, 1, 0}[p.Values]
	if len(src) < size {
		return nil, fmt.Errorf("values: %w", errTruncated)
	}
	switch p.Values {
	case Float32, Float16:
		for j := range val {
			if p.Values == Float32 {
				val[j] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*j:]))
			} else {
				kernels.FromHalf(kernels.F16, val[j:j+1], []uint16{binary.LittleEndian.Uint16(src[2*j:])})
			}
			if val[j]-val[j] != 0 {
				return nil, fmt.Errorf("value %d is %v", j, val[j])
			}
		}
	case Int8:
		for j := range val {
			q := int8(src[j])
			if q == -128 {
				return nil, fmt.Errorf("value %d is below -127", j)
			}
			val[j] = float32(q) * scale
		}
	default:
		for ; len(val) > 0; val = val[min(len(val), 56):] {
			some := val[:min(len(val), 56)]
			word, err := signs.get(uint(len(some)))
			if err != nil {
				return nil, fmt.Errorf("signs: %w", err)
			}
			for j := range some {
				some[j] = math.Float32frombits(math.Float32bits(scale) | uint32(word>>j)<<31)
			}
		}
	}
	return src[size:], nil
}

// uvarint reads a minimal varint of at most most.
func uvarint(src []byte, most uint64) (v uint64, rest []byte, err error) {
	v, used := binary.Uvarint(src)
	switch {
	case used <= 0:
		return 0, nil, errTruncated
	case used > 1 && src[used-1] == 0:
		return 0, nil, errLongVarint
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

// IndexBits is how many bits of a message the indices of a Sparse of n elements take.
func IndexBits(n int, idx []uint32) int {
	var w bitWriter
	w.indices(n, idx)
	return 8*len(w.b) + int(w.n)
}

// appendIndices appends indices alone, padded to a byte.
func appendIndices(dst []byte, n int, idx []uint32) []byte {
	w := bitWriter{b: dst}
	w.indices(n, idx)
	return w.flush()
}

func (w *bitWriter) indices(n int, idx []uint32) {
	if len(idx) == 0 {
		return
	}
	usual := riceParameter(n, len(idx))
	best, cost := bestRice(idx, usual)
	switch {
	case uint64(n)+1 < cost:
		w.put(3, 2)
		w.bitmap(n, idx)
		return
	case best == usual:
		w.put(0, 1)
	default:
		w.put(1, 2)
		w.put(uint64(best), 5)
	}
	next := uint32(0)
	for _, i := range idx {
		gap := i - next
		next = i + 1
		q, low := uint(gap>>best), uint64(gap)&(1<<best-1)
		for ; q+1+best > 57; q -= 25 { // at least 25 are left: best < 32
			w.put(1<<25-1, 25)
		}
		w.put(low<<(q+1)|(1<<q-1), q+1+best)
	}
}

// bestRice finds the parameter that costs least, and its cost less the bit that says it is the usual one. The cost of each gap is convex in the
// parameter, and so is that of all: where it rises it goes on rising.
func bestRice(idx []uint32, usual uint) (best uint, cost uint64) {
	const other = 6 // bits that say another parameter
	best, cost = usual, riceCost(idx, usual)
	for _, step := range [...]int{-1, 1} {
		last := cost
		for b := int(usual) + step; b >= 0 && b <= 31; b += step {
			c := riceCost(idx, uint(b))
			if c+other < cost {
				best, cost = uint(b), c+other
			}
			if c >= last {
				break
			}
			last = c
		}
		if best != usual {
			break
		}
	}
	return best, cost
}

// bitmap writes n bits, ones at idx.
func (w *bitWriter) bitmap(n int, idx []uint32) {
	at, word := 0, uint64(0)
	for _, i := range idx {
		for ; int(i) >= at+56; at += 56 {
			w.put(word, 56)
			word = 0
		}
		word |= 1 << (int(i) - at)
	}
	for ; at < n; at += 56 {
		w.put(word, uint(min(56, n-at)))
		word = 0
	}
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

// decodeIndices reads what appendIndices wrote.
func decodeIndices(src []byte, n int, idx []uint32) (rest []byte, err error) {
	r := bitReader{b: src}
	if err := r.indices(n, idx); err != nil {
		return nil, err
	}
	return r.rest()
}

func (r *bitReader) indices(n int, idx []uint32) error {
	if len(idx) == 0 {
		return nil
	}
	b := uint64(riceParameter(n, len(idx)))
	explicit, err := r.get(1)
	if err != nil {
		return err
	}
	if explicit == 1 {
		bitmap, err := r.get(1)
		if err != nil {
			return err
		}
		if bitmap == 1 {
			return r.bitmap(n, idx)
		}
		if b, err = r.get(5); err != nil {
			return err
		}
	}
	next := uint64(0)
	for j := range idx {
		if r.n < 40 {
			r.fill()
		}
		q := uint64(bits.TrailingZeros64(^r.acc))
		low := r.acc >> (q + 1) & (1<<b - 1)
		if used := uint(q + 1 + b); used <= r.n {
			r.acc >>= used
			r.n -= used
		} else if q, low, err = r.longGap(uint64(n)>>b, uint(b)); err != nil {
			return err
		}
		i := next + q<<b + low
		if i >= uint64(n) {
			return errRange
		}
		idx[j] = uint32(i)
		next = i + 1
	}
	return nil
}

// longGap reads a gap that may be longer than what is in acc.
func (r *bitReader) longGap(most uint64, b uint) (q, low uint64, err error) {
	if q, err = r.unary(most); err == nil {
		low, err = r.get(b)
	}
	return q, low, err
}

func (r *bitReader) bitmap(n int, idx []uint32) error {
	k := 0
	for i := 0; i < n; i += 56 {
		width := min(56, n-i)
		word, err := r.get(uint(width))
		if err != nil {
			return err
		}
		for ; word != 0; word &= word - 1 {
			if k == len(idx) {
				return errBitmap
			}
			idx[k] = uint32(i + bits.TrailingZeros64(word))
			k++
		}
	}
	if k != len(idx) {
		return errBitmap
	}
	return nil
}

var errBitmap = errors.New("the bitmap does not hold as many ones as were announced")
