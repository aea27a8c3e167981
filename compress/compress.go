// Package compress is the contract between gradient compression methods and whatever carries their payloads: what a method
// serves (Set), what it offers (Payload), how it is driven (Compressor), how it is configured (Registry) and what its payloads
// look like on the wire. Methods live in packages of their own and never communicate.
package compress

import (
	"context"
	"fmt"
	"hash/fnv"

	"github.com/gradpress/gradpress/kernels"
)

// Compressor serves a Set of tensors laid end to end, step after step, and does no I/O: the caller carries payloads between ranks
// until Next returns nil. One goroutine only. Given the same received data it does the same on every rank.
//
// Payloads belong to the compressor and are valid until its next call. A payload is always a pointer (*Linear, *Sparse ...), so
// that a step allocates nothing.
type Compressor interface {
	// Start begins a step on v and TAKES from v what it sends: when the step is over v holds what this rank still owes (zero for
	// a compressor that keeps its own memory). It may Sync.
	Start(ctx context.Context, s kernels.Stream, v kernels.Buf[float32]) (Payload, error)
	// Next takes what the exchange delivered and returns the next payload, or nil once out holds the mean gradient. out may be v
	// itself, unless v is where this rank's debt is left. While a Sparse is on its way out may be used as scratch.
	Next(ctx context.Context, s kernels.Stream, got Received, out kernels.Buf[float32]) (Payload, error)
	// State lists what is remembered between steps, part by part. Saving and loading are generic.
	State() []NamedBuf
}

// Set is what a Compressor serves. Seed is equal on all ranks.
type Set struct {
	Parts      []Part
	Rank, Size int
	Seed       uint64
	Dev        kernels.Device
}

// Part is one tensor of a Set. ID stands for Name where a number is needed: see NewPart.
type Part struct {
	Name  string
	ID    uint32
	Shape []int
}

// NewPart gives a tensor its ID, the FNV-1a hash of its name. Shape is row-major.
func NewPart(name string, shape ...int) Part {
	h := fnv.New32a()
	h.Write([]byte(name))
	return Part{Name: name, ID: h.Sum32(), Shape: shape}
}

// Len is the number of elements.
func (p Part) Len() int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// Len is the number of elements of all parts.
func (t Set) Len() int {
	n := 0
	for _, p := range t.Parts {
		n += p.Len()
	}
	return n
}

// Check reports what makes a Set unusable: two parts with one name or one ID, a tensor whose indices do not fit 32 bits.
func (t Set) Check() error {
	seen := map[uint32]string{}
	for _, p := range t.Parts {
		if q, dup := seen[p.ID]; dup {
			return fmt.Errorf("compress: tensors %q and %q have the same ID %08x: rename one", q, p.Name, p.ID)
		}
		seen[p.ID] = p.Name
		if n := p.Len(); n < 0 || n >= 1<<32 {
			return fmt.Errorf("compress: tensor %q has %d elements: the most is 2^32-1", p.Name, n)
		}
	}
	if t.Size < 1 || t.Rank < 0 || t.Rank >= t.Size {
		return fmt.Errorf("compress: rank %d of %d", t.Rank, t.Size)
	}
	return nil
}

// NamedBuf is one thing remembered: memory on the device, or a counter on the host where Count is set.
type NamedBuf struct {
	Name  string
	Buf   kernels.Buf[uint8]
	Count *uint64
}

// Remember names device memory for State.
func Remember[T kernels.Elem](name string, b kernels.Buf[T]) NamedBuf {
	return NamedBuf{Name: name, Buf: kernels.Bytes(b)}
}

// RememberParts names memory that is laid out like the parts, part by part, so that it outlives a change of the layout.
func RememberParts(parts []Part, name string, b kernels.Buf[float32]) []NamedBuf {
	all := make([]NamedBuf, len(parts))
	lo := 0
	for i, p := range parts {
		hi := lo + p.Len()
		all[i] = Remember(p.Name+"/"+name, b.Slice(lo, hi))
		lo = hi
	}
	return all
}

// PerPart lifts an algorithm written for one tensor to a Set: each part gets its own, and their payloads travel together.
func PerPart(mk func(Part, Set) (Compressor, error)) func(Set) (Compressor, error) {
	return func(t Set) (Compressor, error) {
		c := &perPart{parts: t.Parts, of: make([]Compressor, len(t.Parts))}
		c.many.Of, c.many.At = make([]Payload, len(t.Parts)), make([]int, len(t.Parts)+1)
		for i, p := range t.Parts {
			var err error
			if c.of[i], err = mk(p, t); err != nil {
				return nil, fmt.Errorf("%s: %w", p.Name, err)
			}
			c.many.At[i+1] = c.many.At[i] + p.Len()
		}
		return c, nil
	}
}

type perPart struct {
	parts []Part
	of    []Compressor
	many  Many
}

func (c *perPart) Start(ctx context.Context, s kernels.Stream, v kernels.Buf[float32]) (Payload, error) {
	return c.each(v, func(i int, w kernels.Buf[float32]) (Payload, error) { return c.of[i].Start(ctx, s, w) })
}

func (c *perPart) Next(ctx context.Context, s kernels.Stream, got Received, out kernels.Buf[float32]) (Payload, error) {
	return c.each(out, func(i int, w kernels.Buf[float32]) (Payload, error) {
		if c.many.Of[i] == nil {
			return nil, nil // done in an earlier round
		}
		return c.of[i].Next(ctx, s, got.Many[i], w)
	})
}

func (c *perPart) each(v kernels.Buf[float32], f func(int, kernels.Buf[float32]) (Payload, error)) (Payload, error) {
	left := false
	for i, p := range c.parts {
		var err error
		if c.many.Of[i], err = f(i, v.Slice(c.many.At[i], c.many.At[i+1])); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		left = left || c.many.Of[i] != nil
	}
	if !left {
		return nil, nil
	}
	return &c.many, nil
}

func (c *perPart) State() []NamedBuf {
	var all []NamedBuf
	for i, p := range c.parts {
		for _, b := range c.of[i].State() {
			b.Name = p.Name + "/" + b.Name
			all = append(all, b)
		}
	}
	return all
}

// Whole lifts an algorithm written for one tensor to a Set that it sees as one long tensor: what is selected is selected across all parts.
// State still belongs to the parts.
func Whole(mk func(Part, Set) (Compressor, error)) func(Set) (Compressor, error) {
	return func(t Set) (Compressor, error) {
		if len(t.Parts) == 0 {
			return PerPart(mk)(t)
		}
		// The ID is that of the first part, so that randomness is that of nobody else.
		c, err := mk(Part{Name: t.Parts[0].Name, ID: t.Parts[0].ID, Shape: []int{t.Len()}}, t)
		return &whole{c, t}, err
	}
}

type whole struct {
	Compressor
	set Set
}

func (w *whole) State() []NamedBuf {
	var all []NamedBuf
	for _, b := range w.Compressor.State() {
		at := 0
		if b.Count == nil && b.Buf.Len() != 4*w.set.Len() { // not laid out like the parts: it belongs to the pool
			b.Name = w.set.Parts[0].Name + "/" + b.Name
			all = append(all, b)
			continue
		}
		for _, p := range w.set.Parts {
			q := NamedBuf{Name: p.Name + "/" + b.Name, Count: b.Count}
			if b.Count == nil {
				size := 4 * p.Len()
				q.Buf = b.Buf.Slice(at, at+size)
				at += size
			}
			all = append(all, q)
		}
	}
	return all
}
