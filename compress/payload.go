package compress

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gradpress/gradpress/kernels"
)

// Payload is what one rank offers in one round. Its type alone picks the collective.
type Payload interface{ payload() }

// Linear is a vector for which the mean of the payloads is the payload of the mean: it is all-reduced. Each hop rounds to Wire and
// sums in float32. The exchange may overwrite X.
type Linear struct {
	X    kernels.Buf[float32]
	Wire kernels.DType
}

// Sparse is Len[0] entries of a vector of N elements: ascending indices and values, already rounded to what the wire carries. It can
// be summed, and grows denser as it is. Idx and Val have equal length, the most that any rank may send in this round.
type Sparse struct {
	N   int
	Idx kernels.Buf[uint32]
	Val kernels.Buf[float32]
	Len kernels.Buf[uint32]
	// Full says that every rank sends exactly as many entries as fit, so that the count need not be sent.
	Full bool
	// Values is how values travel. Int8 and Sign need Scale, one element, by which Val was rounded; with Agreed set every rank knows
	// it already and it is not sent.
	Values Values
	Scale  kernels.Buf[float32]
	Agreed bool
}

// Values is a coding of the values of a Sparse.
type Values uint8

// Float32 is exact. Float16 rounds to IEEE half precision. Int8 is a whole number from -127 to 127 times a scale. Sign is plus or minus
// a scale.
const (
	Float32 Values = iota
	Float16
	Int8
	Sign
)

var valueNames = []string{"fp32", "fp16", "int8", "sign"}

func (v Values) String() string { return valueNames[v] }

// UnmarshalText reads a name.
func (v *Values) UnmarshalText(b []byte) error {
	i := slices.Index(valueNames, string(b))
	if i < 0 {
		return fmt.Errorf("want one of %s", strings.Join(valueNames, ", "))
	}
	*v = Values(i)
	return nil
}

// ExpectedBytes is what k of n entries take on the wire if their indices are evenly spread: what all ranks know before anything is sent.
func (v Values) ExpectedBytes(n, k float64) float64 {
	if k == 0 {
		return 0
	}
	return math.Ceil(IndexFloor(n, k)/8) + math.Ceil(k*[...]float64{4, 2, 1, 0.125}[v]) + [...]float64{0, 0, 4, 4}[v]
}

// IndexFloor is the least number of bits that k of n evenly spread indices take: n times the entropy of k/n.
func IndexFloor(n, k float64) float64 {
	if k <= 0 || k >= n {
		return 0
	}
	p := k / n
	return -n * (p*math.Log2(p) + (1-p)*math.Log1p(-p)/math.Ln2)
}

// Packed is bytes that mean nothing until they are decoded: every rank gathers all of them. B has the size of the largest that any rank may
// send in this round, equal on all ranks; Len[0] of them are used. With Full set all are, and Len is not looked at.
// With Entropy set they are entropy-coded where that makes them fewer.
type Packed struct {
	B       kernels.Buf[uint8]
	Len     kernels.Buf[uint32]
	Full    bool
	Entropy bool
	// Sizes is how many bytes each rank sends, where all ranks know that they differ; nil where they do not. Then Full must be set.
	Sizes []int
}

// Room is the most bytes that come from a rank.
func (p *Packed) Room() int {
	n := p.B.Len()
	for _, size := range p.Sizes {
		n = max(n, size)
	}
	return n
}

// Size is how many bytes come from rank r, or the most that may.
func (p *Packed) Size(r int) int {
	if p.Sizes != nil {
		return p.Sizes[r]
	}
	return p.B.Len()
}

// Split is a *Sparse or *Packed for each rank, itself included: an all-to-all. All ranks send rank r the same kind of payload, with the same
// room.
type Split struct{ To []Payload }

// Many is several payloads at once, for a compressor that serves several parts; nil entries have no more to say. Where entry i
// serves elements [At[i], At[i+1]) of the set, At says so; else it is nil.
type Many struct {
	Of []Payload
	At []int
}

func (*Linear) payload() {}
func (*Sparse) payload() {}
func (*Packed) payload() {}
func (*Split) payload()  {}
func (*Many) payload()   {}

// Received is what came of a payload: one of Mean, Sparse, Packed or Many.
type Received struct {
	// Mean is the mean over ranks: of a Linear, or of a Sparse that was summed densely.
	Mean kernels.Buf[float32]
	// Sparse are entries whose sum over the list, times Scale, is the mean of a Sparse: one a rank in rank order, or merged. Of a Split
	// they are what each rank had for this one.
	Sparse []Sparse
	Scale  float32
	// Packed are the bytes of every rank, in rank order: of a Packed, or what each rank's Split had for this one.
	Packed []kernels.Buf[uint8]
	Many   []Received
}

// Into writes the mean that was received to out.
func (r Received) Into(s kernels.Stream, out kernels.Buf[float32]) {
	if r.Sparse == nil {
		kernels.Copy(s, out, r.Mean)
		return
	}
	kernels.Zero(s, out)
	for i := range r.Sparse {
		p := &r.Sparse[i]
		kernels.ScatterAdd(s, out, r.Scale, p.Idx, p.Val, p.Len)
	}
}
