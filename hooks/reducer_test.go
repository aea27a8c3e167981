package hooks_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/collective"
	"github.com/gradpress/gradpress/ddp"
	"github.com/gradpress/gradpress/hooks"
	"github.com/gradpress/gradpress/kernels"
	"github.com/gradpress/gradpress/transport/inproc"
)

// rig is one rank with all three groups.
type rig struct {
	red   *ddp.Reducer
	s     kernels.Stream
	moved int
}

// rigs makes ranks whose reducers agree through a group of their own. set may change what each is made with.
func rigs(t testing.TB, ctx context.Context, size int, dev kernels.Device, params []ddp.Param, text string, set func(*hooks.Config, *ddp.Config)) []*rig {
	return rigsOf(t, size, dev, params, set, func(_ int, cfg hooks.Config) (ddp.Hook, error) {
		e, err := hooks.Compressed(ctx, cfg, method(t, text))
		t.Cleanup(e.Close)
		return e, err
	})
}

func rigsOf(t testing.TB, size int, dev kernels.Device, params []ddp.Param, set func(*hooks.Config, *ddp.Config), mk func(r int, cfg hooks.Config) (ddp.Hook, error)) []*rig {
	all := make([]*rig, size)
	data, control, agree := inproc.New(size), inproc.New(size), inproc.New(size)
	for r := range all {
		cfg := hooks.Config{Dev: dev, Data: collective.New(data[r]), Control: collective.New(control[r]), Seed: 42}
		all[r] = &rig{}
		red := ddp.Config{Dev: dev, Group: collective.New(agree[r]), Moved: func() { all[r].moved++ }}
		if set != nil {
			set(&cfg, &red)
		}
		h, err := mk(r, cfg)
		require.NoError(t, err)
		all[r].red, err = ddp.New(params, h, red)
		require.NoError(t, err)
		all[r].s, err = dev.NewStream()
		require.NoError(t, err)
	}
	return all
}

func (g *rig) read(i int) ([]float32, error) {
	x := make([]float32, g.red.Grad(i).Len())
	return x, kernels.Read(context.Background(), g.s, x, g.red.Grad(i))
}

func (g *rig) write(i int, x []float32) error {
	kernels.Write(g.s, g.red.Grad(i), x)
	return g.s.Sync(context.Background())
}

// each runs f on every rank at once.
func each(size int, f func(r int) error) []error {
	errs := make([]error, size)
	var wg sync.WaitGroup
	for r := range size {
		wg.Go(func() { errs[r] = f(r) })
	}
	wg.Wait()
	return errs
}

// plot is what all ranks will do, drawn from a seed, and what one process makes of it.
type plot struct {
	params         []ddp.Param
	size           int
	unused, uneven bool
	seed           uint64
	steps          []int           // of each rank
	passes         [][][]pass      // [rank][step]: the last one is exchanged; one step more than steps[rank] for what Join finds
	want           [][][][]float64 // [rank][step][param]
	mass           [][]float64     // [step][param]: what may have been rounded
}

// pass is a backward pass: which gradients become final, in that order, and what is added to them.
type pass struct {
	order []int
	add   [][]float32 // by parameter
}

func newPlot(seed uint64, size int, unused, uneven bool) *plot {
	rng := rand.New(rand.NewPCG(seed, 3))
	p := &plot{size: size, unused: unused, uneven: uneven, seed: seed}
	for i := range 1 + rng.IntN(7) {
		p.params = append(p.params, ddp.Param{Name: fmt.Sprint("p", i), Shape: []int{rng.IntN(9)}})
	}
	most := 0
	for range size {
		n := 5
		if uneven {
			n = rng.IntN(6)
		}
		p.steps = append(p.steps, n)
		most = max(most, n)
	}
	for r := range size {
		var all [][]pass
		for step := range p.steps[r] + 1 {
			var list []pass
			for range rng.IntN(3) {
				list = append(list, p.draw(rng))
			}
			if step < p.steps[r] {
				list = append(list, p.draw(rng))
			}
			all = append(all, list)
		}
		p.passes = append(p.passes, all)
	}
	p.solve(most)
	return p
}

func (p *plot) draw(rng *rand.Rand) pass {
	ps := pass{order: rng.Perm(len(p.params)), add: make([][]float32, len(p.params))}
	if p.unused {
		ps.order = ps.order[:rng.IntN(len(ps.order)+1)]
	}
	for _, i := range ps.order {
		for range p.params[i].Len() {
			ps.add[i] = append(ps.add[i], float32(rng.NormFloat64()))
		}
	}
	return ps
}

// cleared tells whether the gradients are cleared after a step, or stay and are added to.
func (p *plot) cleared(step int) bool { return (p.seed+uint64(step))%3 != 0 }

func (p *plot) solve(steps int) {
	cur := make([][][]float64, p.size)
	for r := range cur {
		cur[r] = make([][]float64, len(p.params))
		for i := range cur[r] {
			cur[r][i] = make([]float64, p.params[i].Len())
		}
	}
	mass := make([]float64, len(p.params))
	p.want = make([][][][]float64, p.size)
	for step := range steps {
		used := make([]bool, len(p.params))
		mine := make([][]bool, p.size)
		for r := range p.size {
			mine[r] = make([]bool, len(p.params))
			if step > p.steps[r] {
				continue
			}
			for _, ps := range p.passes[r][step] {
				for _, i := range ps.order {
					mine[r][i], used[i] = true, true
					for j, x := range ps.add[i] {
						cur[r][i][j] += float64(x)
						mass[i] += math.Abs(float64(x))
					}
				}
			}
		}
		for i := range p.params {
			if !used[i] && p.unused {
				continue
			}
			for j := range cur[0][i] {
				sum := 0.0
				for r := range p.size {
					if mine[r][i] {
						sum += cur[r][i][j]
					}
				}
				for r := range p.size {
					cur[r][i][j] = sum / float64(p.size)
				}
			}
		}
		p.mass = append(p.mass, slices.Clone(mass))
		for r := range p.size {
			snap := make([][]float64, len(p.params))
			for i := range snap {
				snap[i] = slices.Clone(cur[r][i])
				if p.cleared(step) {
					clear(cur[r][i])
				}
			}
			p.want[r] = append(p.want[r], snap)
		}
		if p.cleared(step) {
			clear(mass)
		}
	}
}

// play is rank r's part.
func (p *plot) play(ctx context.Context, r int, g *rig) error {
	backward := func(ps pass) error {
		for _, i := range ps.order {
			x, err := g.read(i)
			if err != nil {
				return err
			}
			for j, y := range ps.add[i] {
				x[j] += y
			}
			if err := errors.Join(g.write(i, x), g.red.Ready(i)); err != nil {
				return err
			}
		}
		return nil
	}
	gather := func(list []pass) error {
		return g.red.NoSync(func() error {
			for _, ps := range list {
				if err := backward(ps); err != nil {
					return err
				}
			}
			return nil
		})
	}
	step := 0
	check := func() error {
		for i := range p.params {
			x, err := g.read(i)
			if err != nil {
				return err
			}
			for j, y := range x {
				want := p.want[r][step][i][j]
				// A rounding for each sum, of a pass or of the mean, of what has gone in since the gradients were last clear.
				tol := float64(20+2*p.size) * 0x1p-24 * p.mass[step][i]
				if d := math.Abs(float64(y) - want); !(d <= tol) {
					return fmt.Errorf("rank %d, step %d, %s[%d]: want %v, got %v", r, step, p.params[i].Name, j, want, y)
				}
			}
			if p.cleared(step) {
				clear(x)
				if err := g.write(i, x); err != nil {
					return err
				}
			}
		}
		step++
		return nil
	}
	for step < p.steps[r] {
		list := p.passes[r][step]
		if err := errors.Join(gather(list[:len(list)-1]), backward(list[len(list)-1])); err != nil {
			return err
		}
		if err := g.red.Wait(ctx); err != nil {
			return err
		}
		if err := check(); err != nil {
			return err
		}
	}
	if !p.uneven {
		return nil
	}
	if err := gather(p.passes[r][step]); err != nil {
		return err
	}
	return g.red.Join(ctx, check)
}

// TestReducerEqualsOneProcess: whatever the order in which gradients come, whichever parameters are unused, whatever is added up without an
// exchange and whoever has ended, the gradients are those of one process that sees all.
func TestReducerEqualsOneProcess(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for seed := range uint64(120) {
		size := 1 + int(seed%8)
		unused, uneven := seed/8%2 == 1, seed/16%2 == 1
		dev := []kernels.Device{kernels.CPU(), kernels.Lazy()}[seed/32%2]
		p := newPlot(seed, size, unused, uneven)
		ranks := rigs(t, ctx, size, dev, p.params, "dense", func(_ *hooks.Config, c *ddp.Config) {
			c.BucketBytes, c.FirstBytes = 4*(1+int(seed%11)), 4*(1+int(seed%5))
			c.FindUnused, c.Uneven = unused, uneven
			if seed%4 == 3 {
				c.Moved = nil
			}
		})
		for r, err := range each(size, func(r int) error { return p.play(ctx, r, ranks[r]) }) {
			require.NoError(t, err, "seed %d, rank %d of %d, unused %v, uneven %v, %s", seed, r, size, unused, uneven, dev.Name())
		}
	}
}

// A rank that fails takes the others with it, and says what was wrong.
func TestReducerFailsEverywhere(t *testing.T) {
	params := []ddp.Param{{Name: "a", Shape: []int{3}}, {Name: "b", Shape: []int{3}}}
	for want, play := range map[string]func(*rig) error{
		`"b" is ready for the second time`: func(g *rig) error { return errors.Join(g.red.Ready(1), g.red.Ready(1)) },
		`no gradient came for "a"`:         func(g *rig) error { return errors.Join(g.red.Ready(1), g.red.Wait(context.Background())) },
		`Join in the middle of a step`:     func(g *rig) error { return errors.Join(g.red.Ready(1), g.red.Join(context.Background(), nil)) },
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		ranks := rigs(t, ctx, 3, kernels.CPU(), params, "dense", func(_ *hooks.Config, c *ddp.Config) { c.Uneven = true })
		errs := each(3, func(r int) error {
			if r == 1 {
				return play(ranks[r])
			}
			return errors.Join(ranks[r].red.Ready(0), ranks[r].red.Ready(1), ranks[r].red.Wait(ctx))
		})
		for r, err := range errs {
			require.ErrorContains(t, err, want, "rank %d", r)
			require.NoError(t, ctx.Err(), "the deadline must not be what ended it")
		}
		cancel()
	}
}

// After the first step all ranks have the layout that follows rank 0's order, and what the compressors remember has moved along.
func TestRebuild(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	order := []int{2, 6, 5, 0, 3, 1, 4} // of rank 0
	run := func(rebuild bool) (conv2 [][]float32) {
		ranks := rigs(t, ctx, 3, kernels.Lazy(), model, "dgc:ratio=0.01", func(_ *hooks.Config, c *ddp.Config) {
			c.BucketBytes, c.FirstBytes = 6000, 5000
			if !rebuild {
				c.Moved = nil
			}
		})
		for step := range 4 {
			g := draw(uint64(step), 3, modelLen())
			errs := each(3, func(r int) error {
				mine := order
				if r != 0 {
					mine = []int{6, 5, 4, 3, 2, 1, 0}
				}
				for _, i := range mine {
					at := 0
					for _, p := range model[:i] {
						at += p.Len()
					}
					if err := errors.Join(ranks[r].write(i, g[r][at:at+model[i].Len()]), ranks[r].red.Ready(i)); err != nil {
						return err
					}
				}
				return ranks[r].red.Wait(ctx)
			})
			require.NoError(t, errors.Join(errs...))
			x, err := ranks[2].read(2)
			require.NoError(t, err)
			conv2 = append(conv2, x)
		}
		for _, g := range ranks {
			require.Equal(t, rebuild, g.moved == 1)
			require.Equal(t, ranks[0].red.Buckets()[0].Spans, g.red.Buckets()[0].Spans)
			if rebuild {
				require.Equal(t, []int{2}, g.red.Buckets()[0].Spans[0].Params, "conv2 is ready first and fills the first bucket")
			}
		}
		return conv2
	}
	want, got := run(false), run(true)
	for step := range want {
		sameBits(t, want[step], got[step])
	}
}

// liar is a group on which rank 0 sends what no reducer would.
type liar struct {
	ddp.Group
	order  func(msg []byte)
	bitmap func(msg []byte) []byte
}

func (l liar) Broadcast(ctx context.Context, b []byte, root int) error {
	err := l.Group.Broadcast(ctx, b, root)
	l.order(b)
	return err
}

func (l liar) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	msgs, err := l.Group.AllGather(ctx, mine)
	if err == nil {
		msgs[0] = l.bitmap(msgs[0])
	}
	return msgs, err
}

func TestReducerRefusesNonsense(t *testing.T) {
	same := func(b []byte) []byte { return b }
	for want, l := range map[string]liar{
		"rank 0 sends a bitmap of 1 bytes, want 2": {bitmap: func(b []byte) []byte { return b[:1] }, order: func([]byte) {}},
		"rank 0 sends parameter 9 as number 1":     {bitmap: same, order: func(b []byte) { b[4] = 9 }},
		"rank 0 sends parameter 6 as number 2":     {bitmap: same, order: func(b []byte) { b[8] = 6 }},
	} {
		ctx := deadline(t)
		ranks := rigs(t, ctx, 2, kernels.CPU(), model, "dense", func(_ *hooks.Config, c *ddp.Config) {
			l.Group = c.Group
			c.FindUnused, c.Group = true, l
		})
		errs := each(2, func(r int) error {
			for i := len(model) - 1; i >= 0; i-- {
				if err := ranks[r].red.Ready(i); err != nil {
					return err
				}
			}
			return ranks[r].red.Wait(ctx)
		})
		for r, err := range errs {
			require.ErrorContains(t, err, want, "rank %d", r)
		}
	}
}

func TestConfigNeedsGroup(t *testing.T) {
	e, err := hooks.AllReduce(context.Background(), hooks.Config{Dev: kernels.CPU(), Data: collective.New(inproc.New(1)[0]), Control: collective.New(inproc.New(1)[0])})
	require.NoError(t, err)
	for _, c := range []ddp.Config{{FindUnused: true}, {Uneven: true}, {Moved: func() {}}} {
		c.Dev = kernels.CPU()
		_, err := ddp.New(model, e, c)
		require.ErrorContains(t, err, "need a Group")
	}
	red, err := ddp.New(model, e, ddp.Config{Dev: kernels.CPU()})
	require.NoError(t, err)
	defer e.Close()
	require.ErrorContains(t, red.Join(context.Background(), nil), "Uneven")
}

var _ ddp.Group = collective.Group(nil)

// BenchmarkReducer161 is what a step costs beside the work itself: 161 small parameters, one rank, dense.
func BenchmarkReducer161(b *testing.B) {
	params := make([]ddp.Param, 161)
	for i := range params {
		params[i] = ddp.Param{Name: fmt.Sprint(i), Shape: []int{10}}
	}
	for name, set := range map[string]func(*hooks.Config, *ddp.Config){
		"plain":  func(*hooks.Config, *ddp.Config) {},
		"unused": func(_ *hooks.Config, c *ddp.Config) { c.FindUnused = true },
		"memory": func(h *hooks.Config, _ *ddp.Config) { h.Recorder = &hooks.Memory{Limit: 1} },
	} {
		b.Run(name, func(b *testing.B) {
			ctx := context.Background()
			ranks := rigs(b, ctx, 1, kernels.CPU(), params, "dense", set)
			b.ReportAllocs()
			for b.Loop() {
				for i := len(params) - 1; i >= 0; i-- {
					if err := ranks[0].red.Ready(i); err != nil {
						b.Fatal(err)
					}
				}
				if err := ranks[0].red.Wait(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
