package compress

import (
	"context"
	"errors"
	"fmt"

	"github.com/gradpress/gradpress/kernels"
)

// ByOwner is TwoPhase for an algorithm that offers one Sparse a step: first serves the tensor p, again makes what serves a segment of it. Rank
// r owns segment r. Entries go to their owner, which adds their mean to what it still owes there, selects again, and hands that to all.
//
// All segments have the same length, the last one padded with zeros that are never sent anywhere, so that all ranks know all sizes.
//
// State is first's, again's under "owner/", and "owner", what this rank owes on its segment, restored on the same rank of as many only.
func ByOwner(first Compressor, again func(segment Part, t Set) (Compressor, error), p Part, t Set) (Compressor, error) {
	c := &byOwner{first: first, dev: t.Dev, n: p.Len(), length: (p.Len() + t.Size - 1) / t.Size}
	var errs [2]error
	c.again, errs[0] = again(Part{Name: p.Name, ID: p.ID, Shape: []int{c.length}}, t)
	c.owed, errs[1] = kernels.NewBuf[float32](t.Dev, c.length)
	c.parts, c.split.To = make([]Sparse, t.Size), make([]Payload, t.Size)
	return c, errors.Join(errs[:]...)
}

type byOwner struct {
	first, again Compressor
	dev          kernels.Device
	n            int
	length       int                  // of a segment
	owed         kernels.Buf[float32] // of this rank's segment, a mean over ranks
	split        Split
	parts        []Sparse
	sent         bool
}

func (c *byOwner) Start(ctx context.Context, s kernels.Stream, v kernels.Buf[float32]) (Payload, error) {
	c.sent = false
	offer, err := c.first.Start(ctx, s, v)
	if err != nil {
		return nil, err
	}
	p, ok := offer.(*Sparse)
	if !ok {
		panic(fmt.Sprintf("compress: ByOwner of a payload of type %T that is not a Sparse", offer))
	}
	room := min(p.Idx.Len(), c.length)
	for r := range c.parts {
		q := &c.parts[r]
		if q.Len.Len() == 0 {
			if q.Len, err = kernels.NewBuf[uint32](c.dev, 1); err != nil {
				return nil, err
			}
		}
		if q.Idx.Len() != room {
			// Exactly: the room is what all ranks agree on.
			q.Idx.Free()
			q.Val.Free()
			var errs [2]error
			q.Idx, errs[0] = kernels.NewBuf[uint32](c.dev, room)
			q.Val, errs[1] = kernels.NewBuf[float32](c.dev, room)
			if err := errors.Join(errs[:]...); err != nil {
				return nil, err
			}
		}
		q.N, q.Values, q.Scale, q.Agreed = c.length, p.Values, p.Scale, p.Agreed
		kernels.SelectRange(s, q.Idx, q.Val, q.Len, p.Idx, p.Val, p.Len, r*c.length, (r+1)*c.length)
		c.split.To[r] = q
	}
	return &c.split, nil
}

func (c *byOwner) Next(ctx context.Context, s kernels.Stream, got Received, out kernels.Buf[float32]) (Payload, error) {
	if !c.sent {
		c.sent = true
		for i := range got.Sparse {
			p := &got.Sparse[i]
			kernels.ScatterAdd(s, c.owed, got.Scale, p.Idx, p.Val, p.Len)
		}
		return c.again.Start(ctx, s, c.owed)
	}
	kernels.Zero(s, out)
	for r := range got.Sparse {
		p := &got.Sparse[r]
		lo := min(r*c.length, c.n)
		kernels.ScatterAdd(s, out.Slice(lo, min(lo+c.length, c.n)), 1, p.Idx, p.Val, p.Len)
	}
	return nil, nil
}

func (c *byOwner) State() []NamedBuf {
	all := c.first.State()
	for _, b := range c.again.State() {
		b.Name = "owner/" + b.Name
		all = append(all, b)
	}
	return append(all, Remember("owner", c.owed))
}
