package compress

import (
	"fmt"
	"slices"
	"strings"
)

// Exchange is how payloads that cannot be all-reduced reach the other ranks.
type Exchange uint8

// Gather hands every rank all payloads: N-1 of them for each rank. TwoPhase sends each rank its share of the tensor, which it sums,
// compresses again (what that loses it keeps), and hands out: about 2(N-1)/N payloads. Auto takes what costs fewer bytes.
const (
	Gather Exchange = iota
	Twophase
	Auto
)

var exchangeNames = []string{"gather", "twophase", "auto"}

func (e Exchange) String() string { return exchangeNames[e] }

// UnmarshalText reads a name.
func (e *Exchange) UnmarshalText(b []byte) error {
	i := slices.Index(exchangeNames, string(b))
	if i < 0 {
		return fmt.Errorf("want one of %s", strings.Join(exchangeNames, ", "))
	}
	*e = Exchange(i)
	return nil
}
