package compress

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/kernels"
)

// rounds offers its tensor in so many rounds, and counts its calls.
type rounds struct {
	all, done int
	linear    Linear
}

func (c *rounds) Start(_ context.Context, _ kernels.Stream, v kernels.Buf[float32]) (Payload, error) {
	c.done, c.linear.X = 0, v
	return &c.linear, nil
}

func (c *rounds) Next(context.Context, kernels.Stream, Received, kernels.Buf[float32]) (Payload, error) {
	if c.done++; c.done < c.all {
		return &c.linear, nil
	}
	return nil, nil
}

func (c *rounds) State() []NamedBuf { return nil }

// Parts may take different numbers of rounds: one that is done is not asked again.
func TestPerPartEndsPartByPart(t *testing.T) {
	var made []*rounds
	mk := PerPart(func(p Part, _ Set) (Compressor, error) {
		made = append(made, &rounds{all: p.Len()})
		return made[len(made)-1], nil
	})
	set := Set{Parts: []Part{NewPart("one", 1), NewPart("three", 3), NewPart("two", 2)}, Size: 1, Dev: kernels.CPU()}
	c, err := mk(set)
	require.NoError(t, err)
	s, err := set.Dev.NewStream()
	require.NoError(t, err)
	v, err := kernels.NewBuf[float32](set.Dev, set.Len())
	require.NoError(t, err)
	for range 2 {
		p, err := c.Start(context.Background(), s, v)
		require.NoError(t, err)
		n := 0
		for ; p != nil; n++ {
			many := p.(*Many)
			require.Equal(t, []int{0, 1, 4, 6}, many.At)
			for i, part := range set.Parts {
				require.Equal(t, n < part.Len(), many.Of[i] != nil, "round %d, part %s", n, part.Name)
			}
			p, err = c.Next(context.Background(), s, Received{Many: make([]Received, 3)}, v)
			require.NoError(t, err)
		}
		require.Equal(t, 3, n)
		for i, part := range set.Parts {
			require.Equal(t, part.Len(), made[i].done)
		}
	}
}
