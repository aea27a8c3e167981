package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/gradpress/gradpress/transport/launch"
)

func runCommand() *cobra.Command {
	o := launch.Options{PlainRank0: true}
	cmd := &cobra.Command{
		Use:   "run -n N -- COMMAND [ARG ...]",
		Short: "Start N ranks of a command on this machine",
		Long: `Start N processes of a command with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set, pass their output on with the
rank in front, and end all of them when one fails. "gradpress" as COMMAND is this program. Standard output of rank 0 is passed
through as it is, so that it can be piped; everything else goes to standard error.`,
		Example: "  gradpress run -n 4 -- gradpress eval --task lstm-markov --methods dense,dgc",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("run needs a command: gradpress run -n 4 -- gradpress eval")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.N < 1 || o.N > 1024 {
				return usagef("-n is %d, want 1 to 1024", o.N)
			}
			if o.MasterPort < 0 || o.MasterPort > 65535 {
				return usagef("--port is %d, want 1 to 65535, or 0 for any free one", o.MasterPort)
			}
			o.Args, o.Stdout, o.Stderr = args, cmd.OutOrStdout(), cmd.ErrOrStderr()
			return launch.Run(cmd.Context(), o)
		},
	}
	cmd.Flags().IntVarP(&o.N, "nproc", "n", 2, "number of ranks")
	cmd.Flags().IntVar(&o.MasterPort, "port", 0, "port of rank 0; 0 picks a free one")
	cmd.Flags().DurationVar(&o.Grace, "grace", 5*time.Second, "how long ranks may take to end before they are killed")
	cmd.Flags().SetInterspersed(false)
	return cmd
}
