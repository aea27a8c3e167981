package compress

import (
	"encoding/binary"
	"errors"
	"math/bits"
)

// bitWriter appends bits to b, least significant first.
type bitWriter struct {
	b   []byte
	acc uint64
	n   uint // bits in acc, < 64 between calls
}

// put appends n <= 57 bits: v < 1<<n.
func (w *bitWriter) put(v uint64, n uint) {
	w.acc |= v << w.n
	if w.n += n; w.n >= 64 {
		w.b = binary.LittleEndian.AppendUint64(w.b, w.acc)
		w.n -= 64
		w.acc = v >> (n - w.n)
	}
}

// flush pads with zeros to a whole byte.
func (w *bitWriter) flush() []byte {
	for ; w.n > 0; w.n -= min(w.n, 8) {
		w.b = append(w.b, byte(w.acc))
		w.acc >>= 8
	}
	return w.b
}

var (
	errTruncated  = errors.New("ends too early")
	errRange      = errors.New("an index is out of range")
	errLongVarint = errors.New("a varint has a byte too many")
	errPadding    = errors.New("padding is not zero")
)

// bitReader reads bits as bitWriter writes them.
type bitReader struct {
	b   []byte
	pos int // bytes taken into acc
	acc uint64
	n   uint // bits in acc
}

// fill makes acc hold at least 56 bits, or all that are left.
func (r *bitReader) fill() {
	if r.n < 56 && r.pos+8 <= len(r.b) {
		take := (63 - r.n) / 8
		r.acc |= binary.LittleEndian.Uint64(r.b[r.pos:]) & (1<<(8*take) - 1) << r.n
		r.pos += int(take)
		r.n += 8 * take
		return
	}
	for r.n < 56 && r.pos < len(r.b) {
		r.acc |= uint64(r.b[r.pos]) << r.n
		r.pos++
		r.n += 8
	}
}

// get reads n <= 56 bits.
func (r *bitReader) get(n uint) (uint64, error) {
	r.fill()
	if r.n < n {
		return 0, errTruncated
	}
	v := r.acc & (1<<n - 1)
	r.acc >>= n
	r.n -= n
	return v, nil
}

// unary reads a run of ones closed by a zero; a run longer than most is an error.
func (r *bitReader) unary(most uint64) (uint64, error) {
	var q uint64
	for {
		r.fill()
		if r.n == 0 {
			return 0, errTruncated
		}
		run := min(uint(bits.TrailingZeros64(^r.acc)), r.n)
		q += uint64(run)
		if q > most {
			return 0, errRange
		}
		if run < r.n {
			r.acc >>= run + 1
			r.n -= run + 1
			return q, nil
		}
		r.acc, r.n = 0, 0
	}
}

// rest checks that the padding is zero and returns the bytes after it.
func (r *bitReader) rest() ([]byte, error) {
	if pad := r.n % 8; r.acc&(1<<pad-1) != 0 {
		return nil, errPadding
	}
	return r.b[r.pos-int(r.n/8):], nil
}
