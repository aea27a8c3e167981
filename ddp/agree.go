package ddp

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/gradpress/gradpress/kernels"
)

// agree tells the other ranks whether this one still trains and which parameters it has used. It learns whether any of them trains, and
// which parameters any of them has used.
func (r *Reducer) agree(ctx context.Context, active bool) (training bool, err error) {
	mine := make([]byte, 1+(len(r.params)+7)/8) // a flag, then a bit a parameter
	if active {
		mine[0] = 1
	}
	for i, used := range r.used {
		if used {
			mine[1+i/8] |= 1 << (i % 8)
		}
	}
	msgs, err := r.cfg.Group.AllGather(ctx, mine)
	if err != nil {
		return false, err
	}
	for rank, msg := range msgs {
		if len(msg) != len(mine) {
			return false, fmt.Errorf("ddp: rank %d sends a bitmap of %d bytes, want %d: do all ranks have the same parameters?", rank, len(msg), len(mine))
		}
		training = training || msg[0] == 1
	}
	clear(r.shared)
	for i := range r.shared {
		for _, msg := range msgs {
			r.shared[i] = r.shared[i] || msg[1+i/8]>>(i%8)&1 == 1
		}
	}
	return training, nil
}

// setAside makes the gradients that this rank has no share in zero for the exchange, and keeps what they held. Without FindUnused every
// parameter is used by a rank that trains, so that nothing needs to be kept.
func (r *Reducer) setAside(ctx context.Context) error {
	r.kept = r.kept[:0]
	n := 0
	for i, used := range r.used {
		if !used {
			r.kept = append(r.kept, i)
			n += r.params[i].Len()
		}
	}
	if len(r.kept) == 0 {
		return nil
	}
	if r.cfg.FindUnused {
		if err := kernels.Resize(r.cfg.Dev, &r.aside, n); err != nil {
			return err
		}
	}
	at := 0
	for _, i := range r.kept {
		g := r.Grad(i)
		if r.cfg.FindUnused {
			kernels.Copy(r.stream, r.aside.Slice(at, at+g.Len()), g)
			at += g.Len()
		}
		kernels.Zero(r.stream, g)
	}
	return r.stream.Sync(ctx)
}

// putBack restores the gradients that no rank has used.
func (r *Reducer) putBack(ctx context.Context) error {
	if len(r.kept) == 0 || !r.cfg.FindUnused {
		return nil
	}
	at := 0
	for _, i := range r.kept {
		g := r.Grad(i)
		if !r.shared[i] {
			kernels.Copy(r.stream, g, r.aside.Slice(at, at+g.Len()))
		}
		at += g.Len()
	}
	return r.stream.Sync(ctx)
}

// Join is for a rank that has run out of data. It takes part in the steps of those that have not, until all ranks have joined: its
// gradients count as zero and the mean is still over all ranks. What it had added up under NoSync goes into the first of these steps. step
// is called after each with the mean in the gradients, so that the replica follows the others; it clears them. The others' exchanges then
// wait for the end of their backward pass, which is when this rank learns that there is a step.
func (r *Reducer) Join(ctx context.Context, step func() error) error {
	switch {
	case r.err != nil:
		return r.err
	case !r.cfg.Uneven:
		return fmt.Errorf("ddp: Join without Config.Uneven: the other ranks do not expect it")
	}
	for i, ready := range r.ready {
		if ready {
			return r.fail(fmt.Errorf("ddp: Join in the middle of a step: parameter %q is ready", r.params[i].Name))
		}
	}
	for {
		start := time.Now()
		training, err := r.agree(ctx, false)
		if err == nil && !training {
			return nil
		}
		if err == nil {
			err = r.send(ctx)
		}
		if err == nil {
			err = r.receive(ctx, start)
		}
		if err == nil {
			err = step()
		}
		if err != nil {
			return r.fail(err)
		}
	}
}

// rebuild lays the buckets out once, in the order in which rank 0 saw gradients become final.
func (r *Reducer) rebuild(ctx context.Context) error {
	if r.order == nil {
		return nil
	}
	order, err := r.agreeOrder(ctx)
	r.order = nil
	if err != nil {
		return err
	}
	members := plan(r.params, r.classes, order, r.cfg.FirstBytes, r.cfg.BucketBytes)
	if r.sameAs(members) {
		return nil
	}
	old, oldHome := r.buckets, r.home
	if r.buckets, r.home, err = build(r.params, r.classes, members, r.cfg.Dev); err != nil {
		return err
	}
	for i, p := range oldHome {
		kernels.Copy(r.stream, r.Grad(i), old[p.bucket].Grad.Slice(p.lo, p.hi))
	}
	if err := r.stream.Sync(ctx); err != nil {
		return err
	}
	if err := r.hook.Bind(r.params, r.buckets); err != nil {
		return err
	}
	for _, b := range old {
		b.Grad.Free()
	}
	r.cfg.Moved()
	return nil
}

// agreeOrder is the order of rank 0; what it has not seen comes last, in reverse.
func (r *Reducer) agreeOrder(ctx context.Context) ([]int, error) {
	order := r.order
	for i := len(r.params) - 1; i >= 0; i-- {
		if !r.ready[i] {
			order = append(order, i)
		}
	}
	var msg []byte
	for _, i := range order {
		msg = binary.LittleEndian.AppendUint32(msg, uint32(i))
	}
	if err := r.cfg.Group.Broadcast(ctx, msg, 0); err != nil {
		return nil, err
	}
	seen := make([]bool, len(r.params))
	for k := range order {
		i := binary.LittleEndian.Uint32(msg[4*k:])
		if int(i) >= len(seen) || seen[i] {
			return nil, fmt.Errorf("ddp: rank 0 sends parameter %d as number %d of its order, want each of %d parameters once", i, k, len(seen))
		}
		order[k], seen[i] = int(i), true
	}
	return order, nil
}

func (r *Reducer) sameAs(members [][]int) bool {
	if len(members) != len(r.buckets) {
		return false
	}
	for k, list := range members {
		at := 0
		for _, i := range list {
			if r.home[i] != (place{k, at, at + r.params[i].Len()}) {
				return false
			}
			at += r.params[i].Len()
		}
	}
	return true
}
