//! Multicast over IPv4: sockets that hear a group, and which address of this machine is on which network.

use rustix::net::{self, sockopt, AddressFamily, SocketFlags, SocketType};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::Path;

/// Flags of an interface (/sys/class/net): up, and a loopback.
const UP: u32 = 1;
const LOOPBACK: u32 = 1 << 3;
/// RFC 6762, section 11.
const HOPS: u32 = 255;

/// A socket at the group's port, beside those of others, that receives what is sent to the group. It doesn't block.
pub fn multicast_listener(group: Ipv4Addr, port: u16) -> rustix::io::Result<UdpSocket> {
    let socket = fresh()?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &SocketAddrV4::new(group, port))?;
    Ok(socket)
}

/// One that sends to a group on the network of that address of ours, and to whose own port answers come.
pub fn multicast_asker(from: Ipv4Addr) -> rustix::io::Result<UdpSocket> {
    let socket = fresh()?;
    net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))?;
    sockopt::set_ip_multicast_if(&socket, &from)?;
    Ok(socket)
}

fn fresh() -> rustix::io::Result<UdpSocket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    sockopt::set_ip_multicast_ttl(&socket, HOPS)?;
    Ok(UdpSocket::from(socket))
}

/// From now on it hears the group on the network of that address of ours.
pub fn join_multicast(socket: &UdpSocket, group: Ipv4Addr, at: Ipv4Addr) -> rustix::io::Result<()> {
    sockopt::set_ip_add_membership(socket, &group, &at)
}

/// To the group, on the network of that address of ours.
pub fn send_multicast(
    socket: &UdpSocket,
    bytes: &[u8],
    group: Ipv4Addr,
    port: u16,
    at: Ipv4Addr,
) -> std::io::Result<()> {
    sockopt::set_ip_multicast_if(socket, &at)?;
    socket.send_to(bytes, SocketAddrV4::new(group, port)).map(|_| ())
}

/// Returns, for each interface that is up and no loopback, the address that it sends to the group from.
pub fn multicast_addresses(group: Ipv4Addr) -> Vec<Ipv4Addr> {
    let Ok(interfaces) = std::fs::read_dir("/sys/class/net") else { return Vec::new() };
    let mut found: Vec<Ipv4Addr> =
        interfaces.flatten().filter_map(|interface| address_of(&interface.path(), group)).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn address_of(interface: &Path, group: Ipv4Addr) -> Option<Ipv4Addr> {
    let text = |name| std::fs::read_to_string(interface.join(name)).ok();
    let flags = u32::from_str_radix(text("flags")?.trim().trim_start_matches("0x"), 16).ok()?;
    if flags & UP == 0 || flags & LOOPBACK != 0 {
        return None;
    }
    let index = text("ifindex")?.trim().parse().ok()?;
    let socket = fresh().ok()?;
    let any = Ipv4Addr::UNSPECIFIED;
    sockopt::set_ip_multicast_if_with_ifindex(&socket, &group, &any, index).ok()?;
    connected_from(&socket, SocketAddrV4::new(group, 9).into())
}

/// The address of ours that this peer is reached from.
pub fn local_address_for(peer: SocketAddr) -> Option<Ipv4Addr> {
    connected_from(&fresh().ok()?, peer)
}

/// Connecting a datagram socket sends nothing: it only looks up the route.
fn connected_from(socket: &UdpSocket, peer: SocketAddr) -> Option<Ipv4Addr> {
    socket.connect(peer).ok()?;
    match socket.local_addr().ok()? {
        SocketAddr::V4(address) if !address.ip().is_unspecified() => Some(*address.ip()),
        _ => None,
    }
}
