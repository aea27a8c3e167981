package compress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/klauspost/compress/fse"
)

// Entropy coding cuts bytes into blocks of blockSize, so that scratch is small and fixed whatever the tensor. A block is one byte that
// says how it is coded, and then
//
//	plain  the bytes
//	same   the one byte that they all are
//	gaps   of bytes that hold ternaries, two bits each, the lowest first, 0, 1 or 2: how many are not 0, as a varint; their
//	       indices, as a Sparse has them; a bit for each that is set for a 2
//	fse    the length as a varint, and finite state entropy (github.com/klauspost/compress/fse) over the bytes
//
// The coding was chosen by measurement: BenchmarkEntropyCoders prints what each takes. Ternaries, n = 1e6, as a multiple of their
// empirical entropy, and MB/s of the packed bytes to code / to decode:
//
//	p(not 0)  bits each   fse of four a byte   of one a byte   gaps   huff0   zstd
const blockSize = 1 << 17

const (
	plain = iota
	same
	gaps
	fseCoded
)

// mostGaps is how many ternaries of a block may be other than 0 for gaps to be taken. With more fse is as short, and faster.
const mostGaps = 4 * blockSize / 32

// coder holds what coding a block needs.
type coder struct {
	fse fse.Scratch
	idx [mostGaps]uint32
}

// coders keeps some between calls. Unlike a sync.Pool it is not emptied by a garbage collection.
var coders = make(chan *coder, 8)

func getCoder() *coder {
	select {
	case c := <-coders:
		return c
	default:
		return &coder{fse: fse.Scratch{TableLog: 12, Out: make([]byte, 0, blockSize+512)}}
	}
}

func putCoder(c *coder) {
	select {
	case coders <- c:
	default:
	}
}

// appendEntropy appends the coding of b to dst.
func appendEntropy(dst, b []byte) []byte {
	c := getCoder()
	defer putCoder(c)
	for len(b) > 0 {
		n := min(len(b), blockSize)
		dst = c.append(dst, b[:n])
		b = b[n:]
	}
	return dst
}

// decodeEntropy fills b from src and returns what follows it.
func decodeEntropy(src, b []byte) (rest []byte, err error) {
	c := getCoder()
	defer putCoder(c)
	for len(b) > 0 {
		n := min(len(b), blockSize)
		if src, err = c.decode(src, b[:n]); err != nil {
			return nil, err
		}
		b = b[n:]
	}
	return src, nil
}

func (c *coder) append(dst, b []byte) []byte {
	if k, ok := ternaries(b); ok && k <= len(b)*4/32 {
		return c.appendGaps(append(dst, gaps), b, k)
	}
	coded, err := fse.Compress(b, &c.fse)
	switch {
	case errors.Is(err, fse.ErrUseRLE):
		return append(dst, same, b[0])
	case err != nil || len(coded)+3 >= len(b):
		return append(append(dst, plain), b...)
	}
	dst = binary.AppendUvarint(append(dst, fseCoded), uint64(len(coded)))
	return append(dst, coded...)
}

func (c *coder) decode(src, b []byte) (rest []byte, err error) {
	if len(src) == 0 {
		return nil, errTruncated
	}
	kind, src := src[0], src[1:]
	switch kind {
	case plain:
		if len(src) < len(b) {
			return nil, errTruncated
		}
		return src[copy(b, src):], nil
	case same:
		if len(src) == 0 {
			return nil, errTruncated
		}
		for i := range b {
			b[i] = src[0]
		}
		return src[1:], nil
	case gaps:
		return c.decodeGaps(src, b)
	case fseCoded:
		return c.decodeFSE(src, b)
	}
	return nil, fmt.Errorf("no coding %d", kind)
}

func (c *coder) decodeFSE(src, b []byte) (rest []byte, err error) {
	m, src, err := uvarint(src, uint64(len(b)))
	if err != nil {
		return nil, fmt.Errorf("coded length: %w", err)
	}
	if uint64(len(src)) < m {
		return nil, errTruncated
	}
	c.fse.DecompressLimit = len(b)
	out, err := fse.Decompress(src[:m], &c.fse)
	if err != nil {
		return nil, fmt.Errorf("entropy coding: %w", err)
	}
	if len(out) != len(b) {
		return nil, errors.New("entropy coding: another length than announced")
	}
	copy(b, out)
	return src[m:], nil
}

const low = 0x5555555555555555 // the low bit of each ternary

// ternaries tells whether b holds ternaries, and how many of them are not 0.
func ternaries(b []byte) (k int, ok bool) {
	var three uint64
	for ; len(b) >= 8; b = b[8:] {
		w := binary.LittleEndian.Uint64(b)
		three |= w & (w >> 1)
		k += bits.OnesCount64(w)
	}
	for _, x := range b {
		w := uint64(x)
		three |= w & (w >> 1)
		k += bits.OnesCount64(w)
	}
	return k, three&low == 0
}

func (c *coder) appendGaps(dst, b []byte, k int) []byte {
	dst = binary.AppendUvarint(dst, uint64(k))
	idx, j := c.idx[:k], 0
	signs := bitWriter{}
	_ = signs
	for i := 0; i < len(b); i += 8 {
		w := word(b, i)
		for w := (w | w>>1) & low; w != 0; w &= w - 1 {
			idx[j] = uint32(4*i + bits.TrailingZeros64(w)/2)
			j++
		}
	}
	w := bitWriter{b: appendIndices(dst, 4*len(b), idx)}
	for _, i := range idx {
		w.put(uint64(b[i/4]>>(i%4*2+1)&1), 1)
	}
	return w.flush()
}

func (c *coder) decodeGaps(src, b []byte) (rest []byte, err error) {
	k, src, err := uvarint(src, uint64(len(b))*4/32)
	if err != nil {
		return nil, fmt.Errorf("count: %w", err)
	}
	idx := c.idx[:k]
	if src, err = decodeIndices(src, 4*len(b), idx); err != nil {
		return nil, fmt.Errorf("indices: %w", err)
	}
	clear(b)
	r := bitReader{b: src}
	for _, i := range idx {
		two, err := r.get(1)
		if err != nil {
			return nil, err
		}
		b[i/4] |= byte(1+two) << (i % 4 * 2)
	}
	return r.rest()
}

// word is eight bytes of b from i on, with zeros after its end.
func word(b []byte, i int) uint64 {
	if i+8 <= len(b) {
		return binary.LittleEndian.Uint64(b[i:])
	}
	var w [8]byte
	copy(w[:], b[i:])
	return binary.LittleEndian.Uint64(w[:])
}
