// The daemon that Debian's stargz-snapshotter does not have, of the libraries that it has (0.12): a
// snapshotter for containerd. It is built in GOPATH mode, without a network; see lazy_place.py.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/contrib/snapshotservice"
	"github.com/containerd/containerd/log"
	"github.com/containerd/containerd/reference"
	"github.com/containerd/containerd/remotes/docker"
	stargzfs "github.com/containerd/stargz-snapshotter/fs"
	fsconfig "github.com/containerd/stargz-snapshotter/fs/config"
	"github.com/containerd/stargz-snapshotter/fs/source"
	"github.com/containerd/stargz-snapshotter/snapshot"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
)

func check(err error) {
	if err != nil {
		logrus.Fatal(err)
	}
}

func main() {
	root := flag.String("root", "", "directory of its state, absolute")
	socket := flag.String("socket", "", "unix socket to listen on")
	conf := flag.String("config", "", "JSON of fs/config.Config")
	plain := flag.String("plain-http", "", "host:port that is asked without TLS")
	flag.Parse()
	logrus.SetLevel(logrus.DebugLevel)
	logrus.SetFormatter(&logrus.JSONFormatter{})
	ctx := log.WithLogger(context.Background(), log.L)
	var config fsconfig.Config
	text, err := os.ReadFile(*conf)
	check(err)
	check(json.Unmarshal(text, &config))
	transport := http.DefaultTransport.(*http.Transport).Clone()
	hosts := func(ref reference.Spec) ([]docker.RegistryHost, error) {
		// a client without Transport makes fs/remote panic
		return docker.ConfigureDefaultRegistries(
			docker.WithClient(&http.Client{Transport: transport}),
			docker.WithPlainHTTP(func(host string) (bool, error) { return host == *plain, nil }),
		)(ref.Hostname())
	}
	// not the "service" package: it needs k8s.io/cri-api, which Debian does not have
	fs, err := stargzfs.NewFilesystem(filepath.Join(*root, "stargz"), config,
		stargzfs.WithGetSources(source.FromDefaultLabels(hosts)))
	check(err)
	snapshotter, err := snapshot.NewSnapshotter(
		ctx, filepath.Join(*root, "snapshotter"), fs, snapshot.AsynchronousRemove)
	check(err)
	server := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(snapshotter))
	listener, err := net.Listen("unix", *socket)
	check(err)
	go func() { check(server.Serve(listener)) }()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	<-stop
	server.Stop()
	snapshotter.Close() // unmounts what is mounted
}
