package compress

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

type toyConfig struct {
	Ratio    float64 `key:"ratio" doc:"share sent, (0, 1]"`
	Steps    int     `key:"steps" doc:"how long"`
	Nesterov bool    `key:"nesterov" doc:"look ahead"`
}

func (c toyConfig) Validate() error {
	if !(c.Ratio > 0 && c.Ratio <= 1) {
		return errors.New("ratio must be in (0, 1]")
	}
	return nil
}

func toyRegistry() *Registry {
	var r Registry
	RegisterDense(&r)
	Register(&r, "toy", "a toy", toyConfig{Ratio: 0.5, Steps: 3}, None, func(toyConfig, Set) (Compressor, error) { return nil, nil })
	return &r
}

func TestParse(t *testing.T) {
	r := toyRegistry()
	m, err := r.Parse("toy:ratio=0.001,nesterov=true")
	require.NoError(t, err)
	require.Equal(t, toyConfig{Ratio: 0.001, Steps: 3, Nesterov: true}, m.Config)
	require.Equal(t, "toy:ratio=0.001,nesterov=true", m.Text)

	m, err = r.Parse("toy:ratio=1", Setting{"steps", "9"}, Setting{"ratio", "0.1"}, Setting{"unknown", "x"})
	require.NoError(t, err)
	require.Equal(t, toyConfig{Ratio: 1, Steps: 9}, m.Config)

	for text, want := range map[string][]string{
		"":                        {`no method ""`, "dense, toy"},
		"nope":                    {`"nope"`, "dense, toy"},
		"toy:":                    {`no setting ""`, "ratio, steps, nesterov"},
		"toy:rate=1":              {`"rate"`, "ratio, steps, nesterov"},
		"toy:hidden=1":            {`"hidden"`, "ratio, steps, nesterov"},
		"toy:ratio":               {"needs a value"},
		"toy:ratio=x":             {"ratio=x", "finite number"},
		"toy:ratio=NaN":           {"finite number"},
		"toy:ratio=Inf":           {"finite number"},
		"toy:steps=1.5":           {"whole number"},
		"toy:nesterov=maybe":      {"true or false"},
		"toy:ratio=2":             {"(0, 1]"},
		"toy:ratio=0.1,ratio=0.2": {"twice"},
		"dense:ratio=1":           {"no settings"},
	} {
		_, err := r.Parse(text)
		var pe *ParseError
		require.ErrorAs(t, err, &pe, text)
		for _, w := range want {
			require.ErrorContains(t, err, w)
		}
	}
	require.Equal(t, []SettingDoc{{"ratio", "0.5", "share sent, (0, 1]"}, {"steps", "3", "how long"}, {"nesterov", "false", "look ahead"}},
		r.Describe()[1].Settings)
	require.Panics(t, func() { RegisterDense(r) })
}

func TestSetCheck(t *testing.T) {
	good := Set{Parts: []Part{NewPart("a", 2, 3), NewPart("b", 4)}, Size: 2}
	require.NoError(t, good.Check())
	require.Equal(t, 10, good.Len())
	twice := Set{Parts: []Part{NewPart("a", 2), NewPart("a", 3)}, Size: 1}
	require.ErrorContains(t, twice.Check(), `"a"`)
	collide := Set{Parts: []Part{{Name: "x", ID: 7}, {Name: "y", ID: 7}}, Size: 1}
	require.ErrorContains(t, collide.Check(), "rename one")
	require.Error(t, Set{Rank: 2, Size: 2}.Check())
	require.ErrorContains(t, Set{Parts: []Part{NewPart("big", 1<<17, 1<<17)}, Size: 1}.Check(), "big")
}
